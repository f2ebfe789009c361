//! `foveal/foveal.h` by hand: the parts of the C interface that this crate uses, and the whole of
//! its structs. For what the safe functions do not cover (a GPU's memory, packed documents, pages,
//! gradients) call these.
//!
//! Structs that begin with `struct_size` are zeroed first and then given their size, so that a newer
//! library takes an older caller: the header says how. `tests/header.rs` compares every field here
//! with the header.
#![allow(non_camel_case_types)]

use std::ffi::c_void;
use std::os::raw::c_char;

pub const DL_CPU: i32 = 1;
pub const DL_CUDA: i32 = 2;

pub const DL_INT: u8 = 0;
pub const DL_FLOAT: u8 = 2;
pub const DL_BFLOAT: u8 = 4;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// A view: `strides` count elements, null means row-major without gaps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

pub type foveal_status = i32;
pub const FOVEAL_OK: foveal_status = 0;
pub const FOVEAL_INVALID_ARGUMENT: foveal_status = 1;
pub const FOVEAL_UNSUPPORTED: foveal_status = 2;
pub const FOVEAL_OUT_OF_MEMORY: foveal_status = 3;
pub const FOVEAL_DEVICE_ERROR: foveal_status = 4;
pub const FOVEAL_IO_ERROR: foveal_status = 5;
pub const FOVEAL_INTERNAL: foveal_status = 6;

pub type foveal_pass = i32;
pub const FOVEAL_FORWARD: foveal_pass = 0;
pub const FOVEAL_BACKWARD: foveal_pass = 1;
pub const FOVEAL_APPEND: foveal_pass = 2;
pub const FOVEAL_MERGE: foveal_pass = 3;

/// A problem and its operands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct foveal_attention {
    pub struct_size: usize,
    pub pass: foveal_pass,
    pub causal: i32,
    pub rotary_interleaved: i32,
    pub deterministic: i32,
    pub batch_invariant: i32,
    pub has_softmax_scale: i32,
    pub softmax_scale: f32,
    pub softcap: f32,
    pub dropout_p: f32,
    pub has_window: i32,
    pub window_size_left: i64,
    pub window_size_right: i64,
    pub max_seqlen_q: i64,
    pub max_seqlen_k: i64,
    pub dropout_seed: u64,
    pub dropout_offset: u64,
    pub dropout_seed_ptr: *const u64,
    pub dropout_offset_ptr: *const u64,
    pub q: *const DLTensor,
    pub k: *const DLTensor,
    pub v: *const DLTensor,
    pub out: *const DLTensor,
    pub lse: *const DLTensor,
    pub dout: *const DLTensor,
    pub dlse: *const DLTensor,
    pub dq: *const DLTensor,
    pub dk: *const DLTensor,
    pub dv: *const DLTensor,
    pub bias: *const DLTensor,
    pub dbias: *const DLTensor,
    pub sinks: *const DLTensor,
    pub dsinks: *const DLTensor,
    pub alibi_slopes: *const DLTensor,
    pub cu_seqlens_q: *const DLTensor,
    pub cu_seqlens_k: *const DLTensor,
    pub seqused_q: *const DLTensor,
    pub seqused_k: *const DLTensor,
    pub leftpad_k: *const DLTensor,
    pub block_table: *const DLTensor,
    pub cache_batch_idx: *const DLTensor,
    pub k_new: *const DLTensor,
    pub v_new: *const DLTensor,
    pub rotary_cos: *const DLTensor,
    pub rotary_sin: *const DLTensor,
    pub q_rotated: *const DLTensor,
    pub out_a: *const DLTensor,
    pub lse_a: *const DLTensor,
    pub out_b: *const DLTensor,
    pub lse_b: *const DLTensor,
}

impl foveal_attention {
    /// All defaults, with `struct_size` set.
    pub fn new() -> Self {
        // SAFETY: integers, floats and raw pointers, for which 0 is a value; the header asks for it.
        let zeroed: Self = unsafe { std::mem::zeroed() };
        Self { struct_size: std::mem::size_of::<Self>(), ..zeroed }
    }
}

impl Default for foveal_attention {
    fn default() -> Self {
        Self::new()
    }
}

/// Where to run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct foveal_device {
    pub struct_size: usize,
    pub device: DLDevice,
    pub num_threads: i32,
    pub reserved: i32,
}

/// A plan, known by its address alone.
#[repr(C)]
pub struct foveal_plan {
    _private: [u8; 0],
}

extern "C" {
    pub fn foveal_abi_version() -> i32;
    pub fn foveal_version() -> *const c_char;
    pub fn foveal_status_name(status: foveal_status) -> *const c_char;
    pub fn foveal_last_error() -> *const c_char;
    pub fn foveal_plan_create(
        attention: *const foveal_attention,
        device: *const foveal_device,
        plan: *mut *mut foveal_plan,
    ) -> foveal_status;
    pub fn foveal_plan_release(plan: *mut foveal_plan);
    pub fn foveal_plan_workspace_bytes(plan: *const foveal_plan) -> usize;
    pub fn foveal_plan_kernel(plan: *const foveal_plan) -> *const c_char;
    pub fn foveal_plan_run(
        plan: *const foveal_plan,
        attention: *const foveal_attention,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> foveal_status;
    pub fn foveal_attention_run(
        attention: *const foveal_attention,
        device: *const foveal_device,
        stream: *mut c_void,
    ) -> foveal_status;
}
