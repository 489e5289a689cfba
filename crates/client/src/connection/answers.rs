//! What one socket read brought: decoded without the lane's lock, matched under it, once.

use bindery_types::{EntryId, LedgerId};
use bindery_wire::{ErrorCode, FrameLimit, Protocol, v2, v3};

use super::delivery::{Batch, Deliveries, Outcome};
use super::incoming::{Frame, Incoming, Next};
use super::pending::{CallKey, Pending};
use crate::transport::BookieError;

/// One decoded answer.
enum Answer {
    Add {
        ledger: LedgerId,
        entry: EntryId,
        code: ErrorCode,
        is_v3: bool,
    },
    Call {
        key: CallKey,
        result: Result<Outcome, BookieError>,
    },
    /// A frame above the limit, by its beginning.
    TooLarge {
        /// The request that it answers; `None` when that cannot be told, or is an add, whose answer is short.
        key: Option<CallKey>,
        size_bytes: u64,
        limit_bytes: u64,
    },
    /// Nothing that was ever asked for: AUTH, or ids that cannot be.
    Foreign,
}

impl Answer {
    fn too_large(head: &[u8], size_bytes: usize, limit: FrameLimit) -> Answer {
        let key = match Protocol::of(head) {
            None => None,
            Some(Protocol::V2) => match v2::Correlation::of_response_head(head) {
                Some(v2::Correlation::Read { ledger_id, entry_id }) => {
                    Some(CallKey::Read { ledger: ledger_id, entry: entry_id })
                }
                Some(v2::Correlation::BatchRead { request_id, .. }) => {
                    Some(CallKey::Batch { id: request_id })
                }
                Some(v2::Correlation::Add { .. }) | None => None,
            },
            Some(Protocol::V3) => {
                let header = v3::decode_head(head);
                let is_call = |operation| operation != v3::proto::OperationType::AddEntry as i32;
                header
                    .filter(|header| is_call(header.operation))
                    .map(|header| CallKey::V3 { id: header.txn_id })
            }
        };
        Answer::TooLarge { key, size_bytes: size_bytes as u64, limit_bytes: limit.size_bytes() as u64 }
    }
}

/// What became of decoded answers.
#[derive(Default)]
pub(super) struct Matched {
    /// How many there were.
    pub(super) answers: usize,
    /// How many of them found no request: they came too late, after an earlier connection took their place along, or were given
    /// twice. They are dropped.
    pub(super) unmatched: usize,
    /// Why the connection must end: a frame above the limit that finds no request may be no answer at all.
    pub(super) end: Option<String>,
}

/// Decoded answers not matched yet; reused from read to read.
#[derive(Default)]
pub(super) struct Answers(Vec<Answer>);

fn result_of<T>(code: ErrorCode, value: impl FnOnce() -> T) -> Result<T, BookieError> {
    match code {
        ErrorCode::Ok => Ok(value()),
        refused => Err(BookieError::Refused(refused)),
    }
}

fn decode(frame: &Frame<'_>) -> Result<Answer, String> {
    let bytes = frame.bytes();
    match Protocol::of(bytes) {
        None => Err("an empty frame".into()),
        Some(Protocol::V2) => {
            Ok(match v2::Response::decode(bytes).map_err(|error| error.to_string())? {
                v2::Response::Add { code, ledger_id, entry_id, .. } => {
                    match (LedgerId::new(ledger_id), EntryId::new(entry_id)) {
                        (Some(ledger), Some(entry)) => Answer::Add { ledger, entry, code, is_v3: false },
                        _ => Answer::Foreign,
                    }
                }
                v2::Response::Read { code, ledger_id, entry_id, body, .. } => Answer::Call {
                    key: CallKey::Read { ledger: ledger_id, entry: entry_id },
                    result: result_of(code, || Outcome::Read(frame.part(body))),
                },
                v2::Response::BatchRead { code, request_id, is_strided, entries, .. } => {
                    // One copy at most, which all entries share.
                    let result = result_of(code, || {
                        let kept = frame.to_bytes();
                        let base = bytes.as_ptr() as usize;
                        let cut = |entry: &[u8]| {
                            let begin = entry.as_ptr() as usize - base;
                            kept.slice(begin..begin + entry.len())
                        };
                        Outcome::Batch(Batch { entries: entries.map(cut).collect(), is_strided })
                    });
                    Answer::Call { key: CallKey::Batch { id: request_id }, result }
                }
                v2::Response::Auth { .. } => Answer::Foreign,
            })
        }
        Some(Protocol::V3) => {
            let response = v3::decode_response(frame.to_bytes()).map_err(|error| error.to_string())?;
            let code = ErrorCode::from_v3(response.status).unwrap_or(ErrorCode::Io);
            if response.header.operation == v3::proto::OperationType::AddEntry as i32 {
                return match response.add_response {
                    Some(add) => Ok(match (LedgerId::new(add.ledger_id), EntryId::new(add.entry_id)) {
                        (Some(ledger), Some(entry)) => Answer::Add { ledger, entry, code, is_v3: true },
                        _ => Answer::Foreign,
                    }),
                    None => {
                        let hint = match code {
                            ErrorCode::Unauthorized => {
                                ", as by bookies that want TLS, a certificate or a user of clients"
                            }
                            _ => "",
                        };
                        Err(format!("an add was answered with {code:?} and without its message{hint}"))
                    }
                };
            }
            let key = CallKey::V3 { id: response.header.txn_id };
            Ok(Answer::Call { key, result: result_of(code, || Outcome::V3(Box::new(response))) })
        }
    }
}

impl Answers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Decodes every whole frame. After an error the bytes that follow cannot be understood; answers before it are
    /// kept.
    pub(super) fn decode_from(&mut self, incoming: &mut Incoming) -> Result<(), String> {
        let limit = incoming.limit();
        while let Some(next) = incoming.next_frame().map_err(|error| error.to_string())? {
            let answer = match next {
                Next::Frame(frame) => decode(&frame)?,
                Next::TooLarge { head, size_bytes } => Answer::too_large(head, size_bytes, limit),
            };
            self.0.push(answer);
        }
        Ok(())
    }

    /// Gives out the requests that were answered.
    pub(super) fn match_with(&mut self, pending: &mut Pending, out: &mut Deliveries) -> Matched {
        let mut found = Matched::default();
        for answer in self.0.drain(..) {
            let is_matched = match answer {
                Answer::Add { is_v3, .. } if is_v3 != pending.adds.are_v3 => false,
                Answer::Add { ledger, entry, code, .. } => {
                    pending.adds.answer(ledger, entry, result_of(code, || ()), out)
                }
                Answer::Call { key, result } => pending.answer(key, result, out),
                Answer::TooLarge { key, size_bytes, limit_bytes } => {
                    let error = BookieError::AnswerTooLarge { size_bytes, limit_bytes };
                    let why = format!("{error}. It names no request that waits");
                    let is_matched = key.is_some_and(|key| pending.answer(key, Err(error), out));
                    if !is_matched {
                        found.end.get_or_insert(why);
                        continue;
                    }
                    true
                }
                Answer::Foreign => false,
            };
            found.answers += 1;
            found.unmatched += usize::from(!is_matched);
        }
        found
    }
}
