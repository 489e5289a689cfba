//! A socket whose peer has to send preface and settings of HTTP/2 in time. Pings begin after these only, so that a peer that sends one byte
//! would keep its connection for ever.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The preface of HTTP/2 (RFC 9113, section 3.4), and the head of the frame behind it, which has to be that of the settings.
const PREFACE_SIZE: usize = 24;
const HEAD_SIZE: usize = PREFACE_SIZE + 9;

/// A socket that fails unless preface and settings were read in time.
pub(super) struct Opening<S> {
    socket: S,
    /// `None` when they were.
    awaited: Option<Awaited>,
}

struct Awaited {
    deadline: Pin<Box<Sleep>>,
    head: Vec<u8>,
    /// Bytes that came behind the head.
    behind: usize,
}

impl<S> Opening<S> {
    /// The peer has `timeout` from now on.
    pub(super) fn new(socket: S, timeout: Duration) -> Opening<S> {
        let deadline = Box::pin(tokio::time::sleep(timeout));
        Opening {
            socket,
            awaited: Some(Awaited { deadline, head: Vec::with_capacity(HEAD_SIZE), behind: 0 }),
        }
    }
}

impl Awaited {
    /// True when the settings are there. Whether they are sound is HTTP/2's to say.
    fn has_come(&mut self, bytes: &[u8]) -> bool {
        let (head, behind) = bytes.split_at(bytes.len().min(HEAD_SIZE - self.head.len()));
        self.head.extend_from_slice(head);
        self.behind += behind.len();
        // A frame begins with its length.
        match self.head.get(PREFACE_SIZE..HEAD_SIZE) {
            Some([high, middle, low, ..]) => {
                self.behind >= u32::from_be_bytes([0, *high, *middle, *low]) as usize
            }
            Some(_) | None => false,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(awaited) = &mut self.awaited
            && awaited.deadline.as_mut().poll(context).is_ready()
        {
            let late = io::Error::new(ErrorKind::TimedOut, "no preface and settings of HTTP/2 came in time");
            return Poll::Ready(Err(late));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        if let Some(awaited) = &mut self.awaited
            && awaited.has_come(&buffer.filled()[before..])
        {
            self.awaited = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    /// Settings of six bytes.
    const SETTINGS: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1];

    /// A socket from which these parts were read, and its peer.
    async fn after(parts: &[&[u8]]) -> (Opening<DuplexStream>, DuplexStream) {
        let (mut peer, socket) = duplex(1024);
        let mut socket = Opening::new(socket, Duration::from_secs(3600));
        for part in parts {
            peer.write_all(part).await.unwrap();
            let mut bytes = vec![0; part.len()];
            socket.read_exact(&mut bytes).await.unwrap();
            assert_eq!(bytes, *part);
        }
        (socket, peer)
    }

    #[tokio::test]
    async fn who_has_not_begun_in_time_is_cut_off() {
        let all = [PREFACE, SETTINGS].concat();
        for len in [0, 1, 23, 24, 30, 33, 38] {
            let (mut socket, _peer) = after(&[&all[..len]]).await;
            socket.awaited.as_mut().unwrap().deadline.as_mut().reset(Instant::now());
            let ended = tokio::time::timeout(Duration::from_secs(120), socket.read(&mut [0])).await;
            assert_eq!(ended.expect("it ends").unwrap_err().kind(), ErrorKind::TimedOut, "{len} bytes");
        }
    }

    #[tokio::test]
    async fn who_has_begun_may_be_silent() {
        let all = [PREFACE, SETTINGS, &[0; 5]].concat();
        for cuts in [vec![0, 44], vec![0, 39], vec![0, 1, 24, 26, 35, 39], vec![0, 33, 39, 44]] {
            let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &all[cut[0]..cut[1]]).collect();
            assert!(after(&parts).await.0.awaited.is_none(), "{cuts:?}");
        }
    }
}
