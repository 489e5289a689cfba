//! Numbers over time as a drawing: text for a terminal, SVG for a page. Pure: the same numbers are the same drawing.
//!
//! # Data flow
//! ```text
//! Plot: panels of series, a value each second --> fold: as many as there is room for --> axis: limits, ticks --> text, or SVG
//! ```
//!
//! # Invariants
//! 1. A second without a value is a gap, in both drawings.
//! 2. Every axis says its unit, and every series its name.

mod axis;
mod svg;
mod text;

pub use svg::svg;
pub use text::text;

/// How the values lie on their axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    /// Each decade as high as the next: for values that are far apart.
    Log,
}

/// The value that stands for several seconds where there is no room for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    /// Their mean.
    Mean,
    /// The highest.
    Max,
}

/// One line of a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: &'static str,
    /// A value for each second.
    pub values: Vec<Option<f64>>,
}

/// Series that share their axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What it shows, with the unit.
    pub title: &'static str,
    /// How the values lie.
    pub scale: Scale,
    /// What stands for several.
    pub fold: Fold,
    /// Up to four.
    pub series: Vec<Series>,
}

impl Panel {
    fn seconds(&self) -> usize {
        self.series.iter().map(|series| series.values.len()).max().unwrap_or(0)
    }

    /// The same with `most` values of each series at most.
    fn folded(&self, most: usize) -> Panel {
        let each = self.seconds().div_ceil(most.max(1)).max(1);
        let fold = |values: &[Option<f64>]| {
            let there = values.iter().flatten();
            match self.fold {
                Fold::Max => there.copied().reduce(f64::max),
                Fold::Mean => {
                    let (count, sum) =
                        there.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
                    (count > 0.0).then(|| sum / count)
                }
            }
        };
        let series = self
            .series
            .iter()
            .map(|series| Series { values: series.values.chunks(each).map(fold).collect(), ..*series })
            .collect();
        Panel { series, ..*self }
    }
}

/// Panels, one below the other, over the same seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// What was measured.
    pub title: String,
    /// How, and the sums: a line each.
    pub about: Vec<String>,
    /// At least one.
    pub panels: Vec<Panel>,
}

#[cfg(test)]
pub mod examples {
    use super::*;

    /// Twelve seconds, with one in which nothing came.
    pub fn plot() -> Plot {
        let adds = [
            9000.0, 9500.0, 10_200.0, 11_000.0, 0.0, 10_400.0, 9800.0, 9900.0, 10_100.0, 9700.0, 10_000.0,
            9900.0,
        ];
        let p50 = [2.0, 2.1, 2.0, 1.9, -1.0, 4.0, 2.2, 2.1, 2.0, 2.0, 2.1, 2.0];
        let p99 = [6.0, 5.5, 7.0, 6.2, -1.0, 950.0, 20.0, 8.0, 6.0, 6.1, 5.9, 6.0];
        let values = |values: &[f64]| values.iter().map(|value| (*value >= 0.0).then_some(*value)).collect();
        Plot {
            title: "bench add <&\"x\">".to_owned(),
            about: vec!["3 ledgers, E/Qw/Qa 3/3/2".to_owned()],
            panels: vec![
                Panel {
                    title: "adds/s",
                    scale: Scale::Linear,
                    fold: Fold::Mean,
                    series: vec![Series { name: "adds", values: values(&adds) }],
                },
                Panel {
                    title: "latency, ms",
                    scale: Scale::Log,
                    fold: Fold::Max,
                    series: vec![
                        Series { name: "p50", values: values(&p50) },
                        Series { name: "p99", values: values(&p99) },
                    ],
                },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_seconds_are_their_mean_or_the_highest_and_gaps_stay() {
        let values = vec![Some(1.0), Some(3.0), None, None, Some(5.0), None, Some(8.0)];
        let panel = |fold| Panel {
            title: "",
            scale: Scale::Linear,
            fold,
            series: vec![Series { name: "", values: values.clone() }],
        };
        let folded = |fold| panel(fold).folded(4).series[0].values.clone();
        assert_eq!(folded(Fold::Mean), [Some(2.0), None, Some(5.0), Some(8.0)]);
        assert_eq!(folded(Fold::Max), [Some(3.0), None, Some(5.0), Some(8.0)]);
        assert_eq!(panel(Fold::Max).folded(7), panel(Fold::Max));
    }
}
