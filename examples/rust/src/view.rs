//! Tensors that are borrowed, never copied.

use std::ffi::c_void;

use crate::element::Element;
use crate::error::Error;
use crate::ffi;

/// A view of `RANK` dimensions into a slice, whose every element lies in it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T, const RANK: usize> {
    data: &'a [T],
    shape: [usize; RANK],
    /// In elements.
    strides: [usize; RANK],
}

impl<'a, T: Element, const RANK: usize> View<'a, T, RANK> {
    /// Row-major without gaps: `data` has exactly as many elements as the shape.
    pub fn new(data: &'a [T], shape: [usize; RANK]) -> Result<Self, Error> {
        let mut strides = [1; RANK];
        for axis in (1..RANK).rev() {
            strides[axis - 1] = usize::saturating_mul(strides[axis], shape[axis]);
        }
        let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        if elements != Some(data.len()) {
            return Err(Error::invalid_argument(format!(
                "a view of shape {shape:?} over a slice of {} elements: they must be as many",
                data.len()
            )));
        }
        Self::strided(data, shape, strides)
    }

    /// Any order in memory: element `[i, j, ...]` is `data[i * strides[0] + j * strides[1] + ...]`.
    pub fn strided(
        data: &'a [T],
        shape: [usize; RANK],
        strides: [usize; RANK],
    ) -> Result<Self, Error> {
        let last = (0..RANK).try_fold(0usize, |last, axis| {
            last.checked_add(shape[axis].saturating_sub(1).checked_mul(strides[axis])?)
        });
        let empty = shape.contains(&0);
        if !empty && last.map_or(true, |last| last >= data.len()) {
            return Err(Error::invalid_argument(format!(
                "a view of shape {shape:?} and strides {strides:?} ends behind its slice of {} \
                 elements",
                data.len()
            )));
        }
        Ok(Self { data, shape, strides })
    }

    /// The same elements with the dimensions in another order: `permuted([1, 0, 2])` makes
    /// `[heads, seqlen, dim]` of `[seqlen, heads, dim]`. `axes` names each dimension once.
    pub fn permuted(self, axes: [usize; RANK]) -> Result<Self, Error> {
        if !(0..RANK).all(|axis| axes.contains(&axis)) {
            return Err(Error::invalid_argument(format!(
                "axes {axes:?}: each of 0..{RANK} must be there once"
            )));
        }
        Ok(Self {
            data: self.data,
            shape: axes.map(|axis| self.shape[axis]),
            strides: axes.map(|axis| self.strides[axis]),
        })
    }

    pub fn shape(&self) -> [usize; RANK] {
        self.shape
    }

    /// The view as the library takes it: its dimensions in the order of `axes`, `None` for one of
    /// length 1.
    pub(crate) fn operand(&self, axes: [Option<usize>; 4]) -> Operand {
        // No extent is cut to a wrong one: a shape beyond i64 turns negative, which the library
        // refuses, and so may a stride only where the dimension has one element or none.
        Operand {
            data: self.data.as_ptr() as *mut c_void,
            dtype: T::DTYPE,
            shape: axes.map(|axis| axis.map_or(1, |axis| self.shape[axis] as i64)),
            strides: axes.map(|axis| axis.map_or(0, |axis| self.strides[axis] as i64)),
        }
    }
}

/// What a DLTensor points to.
pub(crate) struct Operand {
    pub data: *mut c_void,
    pub dtype: ffi::DLDataType,
    pub shape: [i64; 4],
    pub strides: [i64; 4],
}

impl Operand {
    /// Valid as long as `self` stays where it is.
    pub fn tensor(&mut self) -> ffi::DLTensor {
        ffi::DLTensor {
            data: self.data,
            device: ffi::DLDevice { device_type: ffi::DL_CPU, device_id: 0 },
            ndim: 4,
            dtype: self.dtype,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }
}
