//! The first bytes of a peer: they begin TLS, say who it is, or are requests.

use super::start_tls::First;
use super::{Active, CloseReason};

/// What became of the first bytes of a peer.
pub(super) enum Greeting {
    /// All of them are handled.
    Over,
    /// Look again: a frame of them was handled, or more came.
    Again,
    /// They are a request, or a part of one, which the caller is to handle.
    Request,
}

impl Active<'_> {
    /// Handles what is in the buffer of a stranger: a peer that has not sent a whole request yet, or has to log in and has not. Starts TLS,
    /// or takes a step of the login. The error is why the connection must be closed.
    pub(super) async fn greet(&mut self) -> Result<Greeting, CloseReason> {
        if self.is_first_frame()
            && let Some(start) = self.first_record()
        {
            self.start_tls(start).await?;
            return Ok(Greeting::Over);
        }
        if !self.buffer.has_frame() {
            return Ok(Greeting::Request);
        }
        match self.first_frame().await? {
            First::Tls(start) => {
                self.start_tls(start).await?;
                return Ok(Greeting::Over);
            }
            First::Unknown => {
                self.await_start_tls().await?;
                return Ok(Greeting::Again);
            }
            First::Other => {}
        }
        if self.is_unauthenticated() {
            self.authenticate_with_first().await?;
            return Ok(if self.buffer.is_empty() { Greeting::Over } else { Greeting::Again });
        }
        // Before the request is answered, because a peer that was answered is a client. If it is malformed the connection is closed.
        self.connection.speak(self.shared);
        // Its adds may have to wait for room, and other strangers for this memory.
        self.set_aside();
        Ok(Greeting::Request)
    }
}
