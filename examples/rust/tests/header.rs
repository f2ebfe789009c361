//! `ffi` against `foveal/foveal.h` itself: the fields of the structs by name, order and type, and the
//! numbers. A field that is added to the header must be added here.

use std::fs;
use std::mem::{align_of, size_of};

use foveal::ffi;

fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let from = text.find(start).unwrap_or_else(|| panic!("no `{start}`")) + start.len();
    &text[from..from + text[from..].find(end).unwrap_or_else(|| panic!("no `{end}`"))]
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap_or_default().to_string();
    for part in parts {
        code.push_str(part.split_once("*/").expect("a comment ends").1);
    }
    code
}

/// The C type of a Rust one.
fn c_type(rust: &str) -> String {
    if let Some(pointee) = rust.strip_prefix("*const ") {
        return format!("const {}*", c_type(pointee));
    }
    match rust {
        "usize" => "size_t".into(),
        "i32" => "int32_t".into(),
        "i64" => "int64_t".into(),
        "u64" => "uint64_t".into(),
        "f32" => "float".into(),
        other => other.into(),
    }
}

/// (name, C type) of each field of a C struct.
fn header_fields(name: &str) -> Vec<(String, String)> {
    let header = read("../../include/foveal/foveal.h");
    let body = without_comments(between(
        &header,
        &format!("typedef struct {name} {{"),
        &format!("}} {name};"),
    ));
    let fields = body.split(';').map(str::trim).filter(|field| !field.is_empty());
    fields
        .map(|field| {
            let at = field.rfind([' ', '*']).expect("a type and a name") + 1;
            (field[at..].to_string(), field[..at].trim().to_string())
        })
        .collect()
}

fn rust_fields(name: &str) -> Vec<(String, String)> {
    let source = read("src/ffi.rs");
    let body = between(&source, &format!("pub struct {name} {{"), "\n}");
    let fields = body.lines().map(str::trim).filter(|line| !line.is_empty());
    fields
        .map(|line| {
            let field = line.strip_prefix("pub ").and_then(|line| line.strip_suffix(','));
            let (name, rust) = field.and_then(|field| field.split_once(": ")).expect("a field");
            (name.to_string(), c_type(rust))
        })
        .collect()
}

#[test]
fn structs_have_the_fields_of_the_header() {
    for name in ["foveal_attention", "foveal_device"] {
        let fields = header_fields(name);
        assert!(fields.len() > 3, "{name}: {fields:?}");
        assert_eq!(rust_fields(name), fields, "{name}");
    }
}

/// Those of tests/abi/struct_layout_test.c.
#[test]
fn structs_have_the_pinned_sizes() {
    assert_eq!(size_of::<ffi::foveal_attention>(), 360);
    assert_eq!(size_of::<ffi::foveal_device>(), 24);
    assert_eq!(size_of::<ffi::DLTensor>(), 48);
    assert_eq!(align_of::<ffi::DLTensor>(), 8);
}

#[test]
fn constants_have_the_numbers_of_the_header() {
    let header = without_comments(&read("../../include/foveal/foveal.h"));
    let source = read("src/ffi.rs");
    let mut compared = 0;
    for line in source.lines().filter(|line| line.starts_with("pub const FOVEAL_")) {
        let name = between(line, "pub const ", ":");
        let value = between(line, "= ", ";");
        let given = between(&header, &format!(" {name} = "), "\n").trim().trim_end_matches(',');
        assert_eq!(value, given, "{name}");
        compared += 1;
    }
    assert_eq!(compared, 11);
}

#[test]
fn the_library_is_the_one_of_this_source_tree() {
    assert!(foveal::version().starts_with("0."), "{}", foveal::version());
    assert!(unsafe { ffi::foveal_abi_version() } >= 1);
}
