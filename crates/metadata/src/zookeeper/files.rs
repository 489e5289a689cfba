//! Looks at the files of TLS and SASL, off the threads of the runtime.
//!
//! # Invariants
//! 1. One look at a time: on a file system that hangs, attempts at a connection hold up one thread, however many are given up.

use super::connection::Refused;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The turn to look at the files of one store. Clones share it.
#[derive(Clone)]
pub(super) struct Files(Arc<Semaphore>);

impl Files {
    pub(super) fn new() -> Files {
        Files(Arc::new(Semaphore::new(1)))
    }

    /// What `look`, which may block, returns. Cancelling this leaves it running, and keeps its turn until it ends.
    ///
    /// # Errors
    /// When another look has not ended, or when this one panics.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let turn = self.0.clone().try_acquire_owned().map_err(|_| {
            Refused::failed(
                "the files of TLS or SASL for it are still being read: look at the file system they are on"
                    .to_owned(),
            )
        })?;
        let looking = tokio::task::spawn_blocking(move || {
            let found = look();
            drop(turn);
            found
        });
        looking.await.map_err(|error| Refused::failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use std::sync::mpsc;

    /// Invariant 1.
    #[tokio::test]
    async fn a_look_that_was_given_up_keeps_its_turn_until_it_ends() {
        let files = Files::new();
        let (started, mut is_started) = tokio::sync::mpsc::channel(1);
        let (release, released) = mpsc::sync_channel::<()>(1);
        let hung = tokio::spawn({
            let files = files.clone();
            async move {
                let look = move || {
                    started.blocking_send(()).unwrap();
                    released.recv().is_ok()
                };
                files.look(look).await
            }
        });
        is_started.recv().await.unwrap();
        hung.abort();
        assert!(hung.await.unwrap_err().is_cancelled());
        assert!(
            matches!(files.look(|| ()).await, Err(Refused::Fault(Fault::Other(why))) if why.contains("still being read"))
        );
        release.send(()).unwrap();
        drop(files.0.acquire().await.unwrap());
        assert_eq!(files.look(|| 7).await, Ok(7));
    }
}
