//! Attention by libfoveal, without a framework and without another crate.
//!
//! ```
//! use foveal::{decode_attention, View};
//!
//! # fn main() -> Result<(), foveal::Error> {
//! let (heads_q, heads_kv, max_len, dim) = (8, 2, 16, 64);
//! let q = vec![0.5f32; heads_q * dim];
//! let k_cache = vec![0.25f32; heads_kv * max_len * dim];
//! let v_cache = vec![1.5f32; heads_kv * max_len * dim];
//!
//! // Of 16 slots the first 5 are filled.
//! let out = decode_attention(
//!     View::new(&q, [heads_q, dim])?,
//!     View::new(&k_cache, [heads_kv, max_len, dim])?,
//!     View::new(&v_cache, [heads_kv, max_len, dim])?,
//!     5,
//!     None,
//! )?;
//! assert!(out.iter().all(|value| (value - 1.5).abs() < 1e-6));
//! # Ok(())
//! # }
//! ```
//!
//! The build finds the installed library in `FOVEAL_LIB_DIR`, by pkg-config, or under the usual
//! prefixes. [`ffi`] is the C interface itself.

mod decode;
mod element;
mod error;
pub mod ffi;
mod view;

pub use decode::decode_attention;
pub use element::{Bf16, Element, F16};
pub use error::{Code, Error};
pub use view::View;

/// The release of the library that was loaded: `"0.1.0"`.
pub fn version() -> &'static str {
    // SAFETY: a constant of the library, which is never unloaded.
    let version = unsafe { std::ffi::CStr::from_ptr(ffi::foveal_version()) };
    version.to_str().unwrap_or("unknown")
}
