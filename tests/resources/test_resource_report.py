"""The resource report fails where it should."""
import pathlib
import tempfile
import unittest

import resource_report

CLEAN = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3onev' for 'sm_90'
ptxas info    : Function properties for _Z3onev
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 600 bytes cmem[0]
ptxas info    : Compile time = 3.1 ms
"""
SPILLS = CLEAN.replace("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
                       "16 bytes stack frame, 24 bytes spill stores, 8 bytes spill loads")
STACK = CLEAN.replace("    0 bytes stack frame", "    48 bytes stack frame")
LOSS = CLEAN + ("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
                "serialized due to ... in function '_Z3onev'\n")


def faults(text):
    report = resource_report.parse_report(text, "a.cu")
    resource_report.name_kernels(report.kernels)
    return resource_report.faults_of(report, [])


class ResourceReport(unittest.TestCase):
    def test_reads_the_numbers(self):
        kernel = resource_report.parse_report(SPILLS, "a.cu").kernels[0]
        self.assertEqual((kernel.symbol, kernel.arch, kernel.registers, kernel.shared_bytes),
                         ("_Z3onev", "sm_90", 40, 1024))
        self.assertEqual((kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes),
                         (16, 24, 8))

    def test_clean(self):
        self.assertEqual(faults(CLEAN), [])

    def test_every_architecture_is_a_kernel(self):
        both = CLEAN + SPILLS.replace("sm_90", "sm_80")
        self.assertEqual(len(resource_report.parse_report(both, "a.cu").kernels), 2)
        self.assertEqual(len(faults(both)), 1)
        self.assertIn("sm_80", faults(both)[0])

    def test_spills_and_stack_frames_are_faults(self):
        self.assertIn("one (sm_90, a.cu): 16 bytes of local memory, 32 of them moved by spills",
                      faults(SPILLS)[0])
        self.assertIn("48 bytes of local memory", faults(STACK)[0])

    def test_performance_loss_is_a_fault(self):
        self.assertEqual(len(faults(LOSS)), 1)
        self.assertIn("serialized", faults(LOSS)[0])

    def test_a_report_that_breaks_off_is_a_fault(self):
        self.assertIn("does not end", faults(CLEAN.split("ptxas info    : Used")[0])[0])

    def test_an_object_without_a_report_is_a_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            (build / "CMakeFiles/x.dir/src").mkdir(parents=True)
            (build / "CMakeFiles/x.dir/src/a.cu.o.ptxas").write_text(CLEAN)
            report, missing = resource_report.read_build(build, ["src/a.cu", "src/b.cu"])
            self.assertEqual((len(report.kernels), missing), (1, ["src/b.cu"]))
            self.assertEqual(resource_report.faults_of(report, missing),
                             ["src/b.cu: its object has no report of ptxas"])

    def test_names_lose_namespaces_and_parameters(self):
        self.assertEqual(resource_report.short_name(
            "void foveal::cuda::append::(anonymous namespace)::append_kernel<__half>("
            "foveal::cuda::append::AppendArgs)"), "append::append_kernel<__half>")


if __name__ == "__main__":
    unittest.main()
