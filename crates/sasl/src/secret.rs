//! Secrets: proved, never shown.

use std::fmt;

/// A password. `Debug` hides it, and there is no `Display`.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Wraps a password.
    pub fn new(password: impl Into<String>) -> Secret {
        Secret(password.into())
    }

    /// The password itself, for a mechanism. It must not get into a log, an error or an answer.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A user and the secret that proves it.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// Name of the user.
    pub user: String,
    /// The user's password.
    pub secret: Secret,
}

impl Credentials {
    /// The credentials of `user`.
    pub fn new(user: impl Into<String>, secret: Secret) -> Credentials {
        Credentials { user: user.into(), secret }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Crate invariant 1.
    #[test]
    fn debug_hides_the_secret() {
        let shown = format!("{:?}", Credentials::new("hd", Secret::new("tiger")));
        assert!(shown.contains("hd") && !shown.contains("tiger"), "{shown}");
    }
}
