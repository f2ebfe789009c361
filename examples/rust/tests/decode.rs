//! `decode_attention` against a plain loop in f64, and its refusals in the library's words.

use foveal::{decode_attention, Bf16, Code, Element, Error, View, F16};

/// To and from f32, for tests that are the same for each type.
trait Number: Element {
    /// Largest difference from f64 of results between -1 and 1.
    const LIMIT: f64;
    fn of(value: f32) -> Self;
    fn value(self) -> f32;
}

impl Number for f32 {
    const LIMIT: f64 = 2e-6;
    fn of(value: f32) -> Self {
        value
    }
    fn value(self) -> f32 {
        self
    }
}

impl Number for F16 {
    // Weights and the result, each rounded by 2^-12 at most, and as much again.
    const LIMIT: f64 = 1.0 / 1024.0;
    fn of(value: f32) -> Self {
        F16::from_f32(value)
    }
    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Number for Bf16 {
    const LIMIT: f64 = 1.0 / 128.0; // By 2^-9.
    fn of(value: f32) -> Self {
        Bf16::from_f32(value)
    }
    fn value(self) -> f32 {
        self.to_f32()
    }
}

/// Numbers in [-limit, limit], the same in every run.
struct Random(u32);

impl Random {
    fn fill<T: Number>(&mut self, count: usize, limit: f32) -> Vec<T> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            T::of(limit * (self.0 as i32 as f32) / 2_147_483_648.0)
        };
        (0..count).map(|_| next()).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    heads_q: usize,
    heads_kv: usize,
    max_len: usize,
    dim: usize,
}

const GROUPED: Shape = Shape { heads_q: 8, heads_kv: 2, max_len: 37, dim: 64 };

struct Case<T> {
    shape: Shape,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
}

impl<T: Number> Case<T> {
    fn new(shape: Shape) -> Self {
        let mut random = Random(7);
        let cache = shape.heads_kv * shape.max_len * shape.dim;
        Self {
            shape,
            q: random.fill(shape.heads_q * shape.dim, 8.0), // Some keys are preferred clearly.
            k: random.fill(cache, 1.0),
            v: random.fill(cache, 1.0),
        }
    }

    /// Everything behind `valid` tokens becomes NaN.
    fn poison(&mut self, valid: usize) {
        let row = self.shape.dim;
        for head in 0..self.shape.heads_kv {
            let end = (head + 1) * self.shape.max_len * row;
            for at in (head * self.shape.max_len + valid) * row..end {
                self.k[at] = T::of(f32::NAN);
                self.v[at] = T::of(f32::NAN);
            }
        }
    }

    fn q(&self) -> View<'_, T, 2> {
        View::new(&self.q, [self.shape.heads_q, self.shape.dim]).unwrap()
    }

    fn cache<'a>(&self, data: &'a [T]) -> View<'a, T, 3> {
        View::new(data, [self.shape.heads_kv, self.shape.max_len, self.shape.dim]).unwrap()
    }

    fn decode(&self, valid: usize, scale: Option<f32>) -> Result<Vec<T>, Error> {
        decode_attention(self.q(), self.cache(&self.k), self.cache(&self.v), valid, scale)
    }

    /// softmax(scale * q . k) . v, straight from the formula.
    fn plain(&self, valid: usize, scale: Option<f32>) -> Vec<f64> {
        let Shape { heads_q, heads_kv, max_len, dim } = self.shape;
        let scale = scale.map_or(1.0 / (dim as f64).sqrt(), f64::from);
        let mut out = vec![0.0; heads_q * dim];
        for head in 0..heads_q {
            let head_kv = head / (heads_q / heads_kv);
            let row = |j: usize| (head_kv * max_len + j) * dim;
            let number = |x: &T| f64::from(x.value());
            let q = &self.q[head * dim..][..dim];
            let scores: Vec<f64> = (0..valid)
                .map(|j| self.k[row(j)..][..dim].iter().zip(q).map(|(k, q)| number(k) * number(q)))
                .map(|products| scale * products.sum::<f64>())
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            for (j, score) in scores.iter().enumerate() {
                let weight = (score - max).exp() / sum;
                for (d, v) in self.v[row(j)..][..dim].iter().enumerate() {
                    out[head * dim + d] += weight * number(v);
                }
            }
        }
        out
    }
}

fn assert_close<T: Number>(out: &[T], expected: &[f64], what: &str) {
    assert_eq!(out.len(), expected.len(), "{what}");
    for (at, (out, expected)) in out.iter().zip(expected).enumerate() {
        let error = (f64::from(out.value()) - expected).abs();
        assert!(error <= T::LIMIT, "{what}: element {at} is {}, not {expected}", out.value());
    }
}

fn check_lengths<T: Number>(shape: Shape) {
    for valid in [0, 1, 2, shape.max_len / 2, shape.max_len - 1, shape.max_len] {
        let mut case = Case::<T>::new(shape);
        case.poison(valid);
        let out = case.decode(valid, None).unwrap();
        assert_close(&out, &case.plain(valid, None), &format!("{shape:?}, {valid} valid"));
    }
}

#[test]
fn grouped_heads_at_every_kind_of_length() {
    check_lengths::<f32>(GROUPED);
    check_lengths::<F16>(GROUPED);
    check_lengths::<Bf16>(GROUPED);
}

#[test]
fn one_kv_head_and_as_many_as_query_heads() {
    check_lengths::<f32>(Shape { heads_kv: 1, ..GROUPED });
    check_lengths::<f32>(Shape { heads_kv: 8, ..GROUPED });
}

#[test]
fn odd_head_sizes_and_a_long_cache() {
    check_lengths::<f32>(Shape { heads_q: 3, heads_kv: 3, max_len: 5, dim: 1 });
    check_lengths::<Bf16>(Shape { heads_q: 6, heads_kv: 2, max_len: 2000, dim: 80 });
}

#[test]
fn nothing_valid_gives_zeros() {
    let mut case = Case::<f32>::new(GROUPED);
    case.poison(0);
    assert!(case.decode(0, None).unwrap().iter().all(|&value| value == 0.0));
}

#[test]
fn a_cache_that_grows() {
    let mut case = Case::<f32>::new(GROUPED);
    let full = Case::<f32>::new(GROUPED);
    case.poison(0);
    for step in 0..GROUPED.max_len {
        for head in 0..GROUPED.heads_kv {
            let at = (head * GROUPED.max_len + step) * GROUPED.dim;
            case.k[at..at + GROUPED.dim].copy_from_slice(&full.k[at..at + GROUPED.dim]);
            case.v[at..at + GROUPED.dim].copy_from_slice(&full.v[at..at + GROUPED.dim]);
        }
        let out = case.decode(step + 1, None).unwrap();
        assert_close(&out, &full.plain(step + 1, None), &format!("step {step}"));
    }
}

#[test]
fn the_scale_is_the_callers() {
    let case = Case::<f32>::new(GROUPED);
    for scale in [0.0, 0.03, -0.2] {
        let out = case.decode(20, Some(scale)).unwrap();
        assert_close(&out, &case.plain(20, Some(scale)), &format!("scale {scale}"));
    }
}

#[test]
fn a_cache_of_tokens_first_gives_the_same() {
    let case = Case::<f32>::new(GROUPED);
    let Shape { heads_kv, max_len, dim, .. } = GROUPED;
    let tokens_first = |cache: &[f32]| -> Vec<f32> {
        let index = |at: usize| {
            let (token, head, d) = (at / dim / heads_kv, at / dim % heads_kv, at % dim);
            (head * max_len + token) * dim + d
        };
        (0..cache.len()).map(|at| cache[index(at)]).collect()
    };
    let (k, v) = (tokens_first(&case.k), tokens_first(&case.v));
    let heads_first = |data| View::new(data, [max_len, heads_kv, dim]).unwrap().permuted([1, 0, 2]);
    let (k, v) = (heads_first(&k).unwrap(), heads_first(&v).unwrap());
    let out = decode_attention(case.q(), k, v, 30, None).unwrap();
    assert_close(&out, &case.plain(30, None), "tokens first");
}

#[test]
fn threads_each_get_their_own_result() {
    std::thread::scope(|scope| {
        for valid in 1..5 {
            scope.spawn(move || {
                let case = Case::<f32>::new(GROUPED);
                for _ in 0..20 {
                    let out = case.decode(valid, None).unwrap();
                    assert_close(&out, &case.plain(valid, None), "one of many threads");
                }
            });
        }
    });
}

fn refusal(q: [usize; 2], k: [usize; 3], v: [usize; 3], valid: usize) -> Error {
    let zeros = |count: usize| vec![0f32; count];
    let (q_data, k_data) = (zeros(q.iter().product()), zeros(k.iter().product()));
    let v_data = zeros(v.iter().product());
    let q = View::new(&q_data, q).unwrap();
    let (k, v) = (View::new(&k_data, k).unwrap(), View::new(&v_data, v).unwrap());
    decode_attention(q, k, v, valid, None).expect_err("a refusal")
}

#[test]
fn wrong_shapes_come_back_in_the_librarys_words() {
    for (q, k, v, valid, message) in [
        ([3, 8], [2, 9, 8], [2, 9, 8], 4, "nheads_q 3: it must be a multiple of nheads_k 2"),
        ([4, 8], [2, 9, 16], [2, 9, 8], 4, "q has headdim 8 and k 16: they must be equal"),
        ([4, 8], [2, 9, 8], [2, 7, 8], 4, "they may differ in the last dimension only"),
        ([4, 8], [2, 9, 8], [1, 9, 8], 4, "they may differ in the last dimension only"),
        ([4, 600], [2, 9, 600], [2, 9, 600], 4, "at most 512"),
        ([4, 8], [2, 9, 8], [2, 9, 8], 10, "seqused_k[0]"),
    ] {
        let error = refusal(q, k, v, valid);
        assert!(error.message().contains(message), "{error}, not: {message}");
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert_eq!(error.to_string(), error.message());
    }
}

#[test]
fn a_length_beyond_the_librarys_type_is_refused() {
    let error = refusal([4, 8], [2, 9, 8], [2, 9, 8], usize::MAX);
    assert_eq!(error.message(), format!("valid_kv_len {}: at most 2147483647", usize::MAX));
}

#[test]
fn empty_caches_and_heads_work() {
    let none: [f32; 0] = [];
    let q = [1f32; 8];
    let empty = View::new(&none, [1, 0, 4]).unwrap();
    let out = decode_attention(View::new(&q, [2, 4]).unwrap(), empty, empty, 0, None).unwrap();
    assert_eq!(out, [0.0; 8]);
    let no_heads = View::new(&none, [0, 4]).unwrap();
    let two_heads = [1f32; 2 * 9 * 4];
    for (data, heads_kv) in [(&none[..], 0), (&two_heads[..], 2)] {
        let cache = View::new(data, [heads_kv, 9, 4]).unwrap();
        assert_eq!(decode_attention(no_heads, cache, cache, 5, None).unwrap(), none);
    }
}

#[test]
fn views_stay_inside_their_slices() {
    let data = [0f32; 24];
    assert!(View::new(&data, [2, 3, 4]).is_ok());
    let error = View::new(&data, [2, 3, 5]).unwrap_err();
    assert!(error.message().contains("[2, 3, 5] over a slice of 24 elements"), "{error}");
    assert!(View::new(&data, [usize::MAX, usize::MAX, 2]).is_err());
    assert!(View::strided(&data, [2, 3, 4], [12, 4, 1]).is_ok());
    assert!(View::strided(&data, [2, 3, 4], [12, 4, 2]).is_err());
    assert!(View::strided(&data, [2, 2, 2], [usize::MAX, usize::MAX, 1]).is_err());
    assert!(View::strided(&data, [5, 3, 0], [1000, 4, 1]).is_ok());
    assert_eq!(
        View::new(&data, [2, 3, 4]).unwrap().permuted([2, 0, 1]).unwrap().shape(),
        [4, 2, 3]
    );
    assert!(View::new(&data, [2, 3, 4]).unwrap().permuted([0, 0, 1]).is_err());
}

/// A view may repeat an element 2^62 times; the result of as many rows may not be had.
#[test]
fn a_result_without_memory_is_an_error() {
    let one = [1f32];
    let q = View::strided(&one, [1 << 60, 1], [0, 1]).unwrap();
    let cache = View::new(&one, [1, 1, 1]).unwrap();
    let error = decode_attention(q, cache, cache, 1, None).unwrap_err();
    assert_eq!(error.code(), Code::OutOfMemory, "{error}");
}
