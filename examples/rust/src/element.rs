//! Element types: `f32`, and the two of 16 bits as their bits.

use crate::ffi::{DLDataType, DL_BFLOAT, DL_FLOAT};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::Bf16 {}
    impl Sealed for super::F16 {}
}

/// What q, k, v and the result may be made of.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    #[doc(hidden)]
    const DTYPE: DLDataType;
}

impl Element for f32 {
    const DTYPE: DLDataType = DLDataType { code: DL_FLOAT, bits: 32, lanes: 1 };
}

impl Element for Bf16 {
    const DTYPE: DLDataType = DLDataType { code: DL_BFLOAT, bits: 16, lanes: 1 };
}

impl Element for F16 {
    const DTYPE: DLDataType = DLDataType { code: DL_FLOAT, bits: 16, lanes: 1 };
}

/// bfloat16: the upper half of an `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// Rounds to the nearest, ties to even.
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            return Self((bits >> 16) as u16 | 0x40); // Quiet, so that cutting it leaves a NaN.
        }
        let odd = bits >> 16 & 1;
        Self((bits.wrapping_add(0x7fff + odd) >> 16) as u16)
    }

    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// IEEE 754 binary16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

impl F16 {
    /// Rounds to the nearest, ties to even; what is too large becomes infinite.
    pub fn from_f32(value: f32) -> Self {
        const SMALLEST_NORMAL: u32 = (127 - 14) << 23; // 2^-14
        const EXPONENT_SHIFT: u32 = (127 - 15) << 10;
        let sign = (value.to_bits() >> 16) as u16 & 0x8000;
        let magnitude = value.to_bits() & 0x7fff_ffff;
        if value.is_nan() {
            return Self(sign | 0x7e00);
        }
        let half = if magnitude < SMALLEST_NORMAL {
            // The last bit of 0.5 is 2^-24, that of a subnormal f16: the addition rounds to it.
            (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
        } else {
            let odd = magnitude >> 13 & 1;
            (((magnitude + 0xfff + odd) >> 13) - EXPONENT_SHIFT).min(0x7c00)
        };
        Self(sign | half as u16)
    }

    pub fn to_f32(self) -> f32 {
        const TWO_TO_112: f32 = (1u128 << 112) as f32;
        let sign = u32::from(self.0 & 0x8000) << 16;
        let magnitude = u32::from(self.0 & 0x7fff) << 13;
        if self.0 & 0x7c00 == 0x7c00 {
            return f32::from_bits(sign | 0x7f80_0000 | magnitude);
        }
        // The exponents differ by 112 = 127 - 15; the product is exact, subnormals included.
        f32::from_bits(sign | (f32::from_bits(magnitude) * TWO_TO_112).to_bits())
    }
}
