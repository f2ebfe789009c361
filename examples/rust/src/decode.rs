//! One new token against a KV cache.

use std::convert::TryFrom;
use std::ffi::c_void;
use std::ptr;

use crate::element::Element;
use crate::error::{Code, Error};
use crate::ffi;
use crate::view::{Operand, View};

/// Attention of one token's query to the first `valid_kv_len` tokens of a cache, on the CPU.
///
/// - `q` `[heads_q, dim]`;
/// - `k_cache`, `v_cache` `[heads_kv, max_len, dim]`, in any order in memory ([`View::permuted`]);
///   query head `h` reads key/value head `h / (heads_q / heads_kv)`. What lies behind
///   `valid_kv_len` is not read and may be anything;
/// - `scale` of the scores, `None` for `1 / sqrt(dim)`.
///
/// Gives `[heads_q, dim]`, row-major; zeros where `valid_kv_len` is 0. The library keeps plans, so
/// that a call with shapes seen before only computes. Shapes that contradict each other, a length
/// past `max_len` and all else that can't be computed come back as the library's own sentence.
pub fn decode_attention<T: Element>(
    q: View<'_, T, 2>,
    k_cache: View<'_, T, 3>,
    v_cache: View<'_, T, 3>,
    valid_kv_len: usize,
    scale: Option<f32>,
) -> Result<Vec<T>, Error> {
    let mut valid_len = i32::try_from(valid_kv_len).map_err(|_| {
        Error::invalid_argument(format!("valid_kv_len {valid_kv_len}: at most {}", i32::MAX))
    })?;
    let (heads_q, headdim_v) = (q.shape()[0], v_cache.shape()[2]);
    let mut out = zeros::<T>(heads_q, headdim_v)?;

    // The library's order is [batch, seqlen, heads, dim].
    let mut q = q.operand([None, None, Some(0), Some(1)]);
    let mut k = k_cache.operand([None, Some(1), Some(0), Some(2)]);
    let mut v = v_cache.operand([None, Some(1), Some(0), Some(2)]);
    let mut result = Operand {
        data: out.as_mut_ptr() as *mut c_void,
        dtype: T::DTYPE,
        shape: [1, 1, heads_q as i64, headdim_v as i64],
        strides: [0, 0, headdim_v as i64, 1],
    };
    let (q, k, v, result) = (q.tensor(), k.tensor(), v.tensor(), result.tensor());
    let mut batch = [1i64];
    let seqused_k = ffi::DLTensor {
        data: &mut valid_len as *mut i32 as *mut c_void,
        ndim: 1,
        dtype: ffi::DLDataType { code: ffi::DL_INT, bits: 32, lanes: 1 },
        shape: batch.as_mut_ptr(),
        strides: ptr::null_mut(),
        ..q
    };
    let attention = ffi::foveal_attention {
        has_softmax_scale: i32::from(scale.is_some()),
        softmax_scale: scale.unwrap_or(0.0),
        q: &q,
        k: &k,
        v: &v,
        out: &result,
        seqused_k: &seqused_k,
        ..ffi::foveal_attention::new()
    };
    // SAFETY: every pointer is to a local or to a slice that is borrowed until the end; the views
    // lie inside their slices, `out` has the elements of its shape, and without k_new the library
    // writes to nothing else. A device and stream of null: the tensors' own device, OpenMP.
    Error::check(unsafe { ffi::foveal_attention_run(&attention, ptr::null(), ptr::null_mut()) })?;
    Ok(out)
}

/// `rows * columns` zeros, or an error where there is no memory for them: a view may repeat one
/// element as often as it likes.
fn zeros<T: Element>(rows: usize, columns: usize) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    let count = rows.checked_mul(columns).filter(|&count| values.try_reserve_exact(count).is_ok());
    let count = count.ok_or_else(|| {
        Error::new(Code::OutOfMemory, format!("no memory for a result of [{rows}, {columns}]"))
    })?;
    values.resize(count, T::default());
    Ok(values)
}
