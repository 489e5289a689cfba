//! What is known of a number without a process that measures it.

/// How a number may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Quantiles of the last minute, with count and sum since the start, by `success`.
    Summary,
    /// Counts by upper bounds.
    Histogram,
}

impl Kind {
    /// As Prometheus writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Summary => "summary",
            Kind::Histogram => "histogram",
        }
    }
}

/// What is known of a number without a process that measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// As Prometheus knows it.
    pub name: &'static str,
    /// How it may be used.
    pub kind: Kind,
    /// The label of the thing it is of, where there are several; empty where there is one.
    pub label: &'static str,
    /// What tells its series apart besides that and what every number of its kind has.
    pub labels: &'static [&'static str],
    /// What it says, in sentences.
    pub help: &'static str,
    /// BookKeeper has the name; here it says something that is close to it, which the help describes.
    pub is_stand_in: bool,
}
