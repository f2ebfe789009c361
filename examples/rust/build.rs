//! Finds the installed libfoveal: in FOVEAL_LIB_DIR, else where pkg-config says, else under the usual
//! prefixes. Programs and tests of this crate get its folder as their run path; a crate that depends
//! on this one finds it as DEP_FOVEAL_LIB_DIR in its own build script.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

fn library_name() -> &'static str {
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => "libfoveal.dylib",
        _ => "libfoveal.so",
    }
}

fn has_library(folder: &Path) -> bool {
    folder.join(library_name()).is_file()
}

/// The folder of FOVEAL_LIB_DIR; an error when it is set to one without the library.
fn from_environment() -> Result<Option<PathBuf>, String> {
    let folder = match env::var_os("FOVEAL_LIB_DIR") {
        Some(value) if !value.is_empty() => PathBuf::from(value),
        _ => return Ok(None),
    };
    if has_library(&folder) {
        return Ok(Some(folder));
    }
    Err(format!("FOVEAL_LIB_DIR={}: no {} there", folder.display(), library_name()))
}

/// The first -L of `pkg-config --libs foveal` that holds the library; --keep-system-libs names it
/// even where the linker would look anyway.
fn from_pkg_config(tried: &mut Vec<String>) -> Option<PathBuf> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(program).args(["--libs", "--keep-system-libs", "foveal"]).output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        Ok(_) => {
            tried.push("pkg-config (it knows no package foveal: set PKG_CONFIG_PATH)".into());
            return None;
        }
        Err(error) => {
            tried.push(format!("pkg-config ({error})"));
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = split_flags(&text)
        .iter()
        .filter_map(|flag| flag.strip_prefix("-L"))
        .map(PathBuf::from)
        .find(|folder| has_library(folder));
    if found.is_none() {
        tried.push(format!("pkg-config (\"{}\")", text.trim()));
    }
    found
}

/// Words of pkg-config's output, in which a backslash keeps the character behind it.
fn split_flags(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => words.last_mut().unwrap().extend(characters.next()),
            c if c.is_whitespace() => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn from_prefixes(tried: &mut Vec<String>) -> Option<PathBuf> {
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let home = env::var("HOME").unwrap_or_default();
    let prefixes =
        ["/usr/local", "/usr", "/opt/foveal", &format!("{home}/.local")].map(PathBuf::from);
    let folders = ["lib".into(), "lib64".into(), format!("lib/{architecture}-linux-gnu")];
    for prefix in &prefixes {
        for folder in folders.iter().map(|folder| prefix.join(folder)) {
            if has_library(&folder) {
                return Some(folder);
            }
            tried.push(folder.display().to_string());
        }
    }
    None
}

fn find_library() -> Result<PathBuf, String> {
    if let Some(folder) = from_environment()? {
        return Ok(folder);
    }
    let mut tried = Vec::new();
    from_pkg_config(&mut tried).or_else(|| from_prefixes(&mut tried)).ok_or_else(|| {
        format!(
            "{} was not found. Install it (`make install` in foveal's source tree), or set \
             FOVEAL_LIB_DIR to its folder. Looked in:\n  {}",
            library_name(),
            tried.join("\n  ")
        )
    })
}

fn main() {
    for name in ["FOVEAL_LIB_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH", "HOME"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    // An absolute path: cargo and rustc run in different folders.
    let folder = find_library().and_then(|folder| {
        folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))
    });
    match folder {
        Ok(folder) => {
            // Found anew when the library is no longer there.
            println!("cargo:rerun-if-changed={}", folder.join(library_name()).display());
            let folder = folder.display();
            println!("cargo:rustc-link-search=native={folder}");
            println!("cargo:rustc-link-lib=dylib=foveal");
            println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
            println!("cargo:lib_dir={folder}");
        }
        Err(message) => {
            eprintln!("{message}");
            process::exit(1);
        }
    }
}
