//! The 16-bit types: every bit pattern there and back, and rounding.

use foveal::{Bf16, F16};

#[test]
fn every_f16_survives_f32() {
    for bits in 0..=u16::MAX {
        let value = F16(bits).to_f32();
        if value.is_nan() {
            assert!(bits & 0x7fff > 0x7c00, "{bits:#x}");
            assert!(F16::from_f32(value).to_f32().is_nan(), "{bits:#x}");
        } else {
            assert_eq!(F16::from_f32(value), F16(bits), "{bits:#x} is {value}");
        }
    }
}

#[test]
fn every_bf16_survives_f32() {
    for bits in 0..=u16::MAX {
        let value = Bf16(bits).to_f32();
        if value.is_nan() {
            assert!(Bf16::from_f32(value).to_f32().is_nan(), "{bits:#x}");
        } else {
            assert_eq!(Bf16::from_f32(value), Bf16(bits), "{bits:#x} is {value}");
        }
    }
}

#[test]
fn f16_has_ieee_values() {
    for (bits, value) in [
        (0x3c00, 1.0),
        (0xc000, -2.0),
        (0x7bff, 65504.0),
        (0x0400, 2f32.powi(-14)),
        (0x0001, 2f32.powi(-24)),
        (0x3555, 0.333_251_95),
        (0xfc00, f32::NEG_INFINITY),
    ] {
        assert_eq!(F16(bits).to_f32(), value, "{bits:#x}");
    }
}

/// Between each two neighbours: the middle goes to the even one, what is nearer to one goes to it.
#[test]
fn both_round_to_the_nearest_ties_to_even() {
    fn check(from_f32: fn(f32) -> u16, to_f32: fn(u16) -> f32, infinity: u16) {
        for low in 0..infinity - 1 {
            let (a, b) = (to_f32(low), to_f32(low + 1));
            let middle = ((f64::from(a) + f64::from(b)) / 2.0) as f32;
            assert_eq!(from_f32(middle), low + (low & 1), "{a} to {b}");
            assert_eq!(from_f32(f32::from_bits(middle.to_bits() - 1)), low, "below {middle}");
            assert_eq!(from_f32(f32::from_bits(middle.to_bits() + 1)), low + 1, "above {middle}");
            assert_eq!(from_f32(-middle), 0x8000 | (low + (low & 1)), "-{middle}");
        }
    }
    check(|value| F16::from_f32(value).0, |bits| F16(bits).to_f32(), 0x7c00);
    check(|value| Bf16::from_f32(value).0, |bits| Bf16(bits).to_f32(), 0x7f80);
}

#[test]
fn too_large_is_infinite() {
    assert_eq!(F16::from_f32(65519.0), F16(0x7bff));
    assert_eq!(F16::from_f32(65520.0), F16(0x7c00));
    assert_eq!(F16::from_f32(-1e30), F16(0xfc00));
    assert_eq!(Bf16::from_f32(f32::MAX), Bf16(0x7f80));
}
