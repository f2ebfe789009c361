//! What went wrong, in the library's own words.

use std::ffi::CStr;
use std::fmt;

use crate::ffi;

/// Why a call failed: the library's status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// The arguments contradict themselves.
    InvalidArgument,
    /// Valid, but no kernel, device or build here can do it.
    Unsupported,
    OutOfMemory,
    /// The driver or runtime refused.
    DeviceError,
    /// A fault of foveal's own, or a code that this crate does not know.
    Internal,
}

/// A code and one sentence: which argument, what was given, what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    message: String,
}

impl Error {
    pub(crate) fn new(code: Code, message: String) -> Self {
        Self { code, message }
    }

    pub(crate) fn invalid_argument(message: String) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// The result of a call of this thread that just returned `status`.
    pub(crate) fn check(status: ffi::foveal_status) -> Result<(), Self> {
        let code = match status {
            ffi::FOVEAL_OK => return Ok(()),
            ffi::FOVEAL_INVALID_ARGUMENT => Code::InvalidArgument,
            ffi::FOVEAL_UNSUPPORTED => Code::Unsupported,
            ffi::FOVEAL_OUT_OF_MEMORY => Code::OutOfMemory,
            ffi::FOVEAL_DEVICE_ERROR => Code::DeviceError,
            _ => Code::Internal,
        };
        // SAFETY: never null, and valid until this thread's next failure.
        let message = unsafe { CStr::from_ptr(ffi::foveal_last_error()) };
        Err(Self::new(code, message.to_string_lossy().into_owned()))
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
