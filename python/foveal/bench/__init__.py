"""`python -m foveal bench --impl NAME ... MANIFEST`: other libraries on the workloads of
`foveal bench`, in its JSON, so that `foveal compare` can hold one against the other."""
