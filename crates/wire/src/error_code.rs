//! The outcome of a request and its numbers in both protocols (protocol reference, section 1.6).

/// How a bookie answered. Clients treat `Fenced` and `Unauthorized` on an add as fatal for the ledger handle, so
/// neither may stand for a passing condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// Done.
    Ok,
    /// This bookie has never stored an entry of the ledger, or has deleted it: an explicit negative.
    NoLedger,
    /// The ledger is known, the entry is not here: an explicit negative.
    NoEntry,
    /// The request makes no sense.
    BadRequest,
    /// The bookie failed; nothing is known about the entry.
    Io,
    /// Wrong master key, or the connection is not authenticated.
    Unauthorized,
    /// A protocol version this bookie does not speak.
    BadVersion,
    /// The ledger is fenced: only recovery may add.
    Fenced,
    /// The bookie takes no writes.
    ReadOnly,
    /// Over a limit; try another bookie or later.
    TooManyRequests,
    /// The bookie cannot tell whether it ever had the ledger or entry (limbo). Only v3 can say so.
    UnknownLedgerState,
}

impl ErrorCode {
    /// Every code once, in v3 order of meaning.
    pub const ALL: [ErrorCode; 11] = [
        ErrorCode::Ok,
        ErrorCode::NoLedger,
        ErrorCode::NoEntry,
        ErrorCode::BadRequest,
        ErrorCode::Io,
        ErrorCode::Unauthorized,
        ErrorCode::BadVersion,
        ErrorCode::Fenced,
        ErrorCode::ReadOnly,
        ErrorCode::TooManyRequests,
        ErrorCode::UnknownLedgerState,
    ];

    /// The v2 result code to send. `UnknownLedgerState` becomes 101: released Java clients drop the connection on 107,
    /// and treat 101 as "unknown", which is what limbo means.
    pub const fn v2(self) -> i32 {
        match self {
            ErrorCode::Ok => 0,
            ErrorCode::NoLedger => 1,
            ErrorCode::NoEntry => 2,
            ErrorCode::BadRequest => 100,
            ErrorCode::Io | ErrorCode::UnknownLedgerState => 101,
            ErrorCode::Unauthorized => 102,
            ErrorCode::BadVersion => 103,
            ErrorCode::Fenced => 104,
            ErrorCode::ReadOnly => 105,
            ErrorCode::TooManyRequests => 106,
        }
    }

    /// The v3 `StatusCode`.
    pub const fn v3(self) -> i32 {
        match self {
            ErrorCode::Ok => 0,
            ErrorCode::NoLedger => 402,
            ErrorCode::NoEntry => 403,
            ErrorCode::BadRequest => 404,
            ErrorCode::Io => 501,
            ErrorCode::Unauthorized => 502,
            ErrorCode::BadVersion => 503,
            ErrorCode::Fenced => 504,
            ErrorCode::ReadOnly => 505,
            ErrorCode::TooManyRequests => 506,
            ErrorCode::UnknownLedgerState => 507,
        }
    }

    /// Reads a v2 result code. 107 is understood, since a Java bookie sends it, although we never do.
    pub fn from_v2(code: i32) -> Option<ErrorCode> {
        if code == 107 {
            return Some(ErrorCode::UnknownLedgerState);
        }
        Self::ALL.into_iter().find(|known| known.v2() == code)
    }

    /// Reads a v3 `StatusCode`.
    pub fn from_v3(code: i32) -> Option<ErrorCode> {
        Self::ALL.into_iter().find(|known| known.v3() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_two_numbers() {
        let table = ErrorCode::ALL.map(|code| (code.v2(), code.v3()));
        let expected = [
            (0, 0),
            (1, 402),
            (2, 403),
            (100, 404),
            (101, 501),
            (102, 502),
            (103, 503),
            (104, 504),
            (105, 505),
            (106, 506),
            (101, 507),
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn v2_never_says_107() {
        assert!(ErrorCode::ALL.iter().all(|code| code.v2() != 107));
        assert_eq!(ErrorCode::UnknownLedgerState.v2(), ErrorCode::Io.v2());
    }

    #[test]
    fn numbers_read_back() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_v3(code.v3()), Some(code));
            let expected = if code == ErrorCode::UnknownLedgerState { ErrorCode::Io } else { code };
            assert_eq!(ErrorCode::from_v2(code.v2()), Some(expected));
        }
        assert_eq!(ErrorCode::from_v2(107), Some(ErrorCode::UnknownLedgerState));
        assert_eq!(
            (ErrorCode::from_v2(3), ErrorCode::from_v2(-1), ErrorCode::from_v3(1)),
            (None, None, None)
        );
    }
}
