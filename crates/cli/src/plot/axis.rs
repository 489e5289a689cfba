//! Limits and ticks of an axis.

use super::{Panel, Scale};
use crate::figure::grouped;

/// Roughly so many parts of an axis from zero.
const PARTS: f64 = 4.0;

/// The axis of values of a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// From low to high.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// One on which all values of a panel lie.
    pub fn of(panel: &Panel) -> Axis {
        let values = || panel.series.iter().flat_map(|series| series.values.iter().flatten().copied());
        let highest = values().reduce(f64::max).unwrap_or(0.0);
        match panel.scale {
            Scale::Linear => {
                let step = nice(highest.max(f64::MIN_POSITIVE) / PARTS);
                let step = if highest > 0.0 { step } else { 1.0 };
                let parts = (highest / step).ceil().max(1.0);
                let ticks = (0..=parts as u32).map(|part| f64::from(part) * step).collect();
                Axis { scale: panel.scale, low: 0.0, high: parts * step, ticks }
            }
            Scale::Log => {
                // No value has no place on it, nor has zero: the lowest decade is theirs.
                let lowest = values().filter(|value| *value > 0.0).reduce(f64::min).unwrap_or(1.0);
                let first = lowest.log10().floor();
                let last = highest.max(lowest).log10().ceil().max(first + 1.0);
                let ticks = (first as i32..=last as i32).map(|decade| 10f64.powi(decade)).collect();
                Axis { scale: panel.scale, low: 10f64.powf(first), high: 10f64.powf(last), ticks }
            }
        }
    }

    /// Where a value lies, from 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        share.clamp(0.0, 1.0)
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
pub fn nice(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * 0.999_999);
    factor.unwrap_or(10.0) * power
}

/// A tick in words.
pub fn number(value: f64) -> String {
    if value >= 1000.0 {
        return grouped(value.round() as u64);
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Ticks of an axis of so many seconds.
pub fn seconds(count: usize) -> Vec<usize> {
    let step = nice((count as f64 / 6.0).max(1.0)) as usize;
    (0..=count).step_by(step.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Fold, Series};

    fn axis(scale: Scale, values: &[f64]) -> Axis {
        let values = values.iter().copied().map(Some).collect();
        Axis::of(&Panel { title: "", scale, fold: Fold::Mean, series: vec![Series { name: "", values }] })
    }

    #[test]
    fn ticks_are_round_numbers_around_the_values() {
        assert_eq!(axis(Scale::Linear, &[0.0, 11_000.0]).ticks, [0.0, 5000.0, 10_000.0, 15_000.0]);
        assert_eq!(axis(Scale::Linear, &[]).ticks, [0.0, 1.0]);
        assert_eq!(axis(Scale::Linear, &[0.0]).ticks, [0.0, 1.0]);
        assert_eq!(axis(Scale::Linear, &[100.0]).ticks, [0.0, 50.0, 100.0]);
        assert_eq!(axis(Scale::Log, &[1.9, 950.0]).ticks, [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(axis(Scale::Log, &[1.0]).ticks, [1.0, 10.0]);
        assert_eq!(axis(Scale::Log, &[]).ticks, [1.0, 10.0]);
        let log = axis(Scale::Log, &[1.0, 100.0]);
        assert_eq!([log.share(0.0), log.share(10.0), log.share(1000.0)], [0.0, 0.5, 1.0]);
        assert_eq!(["0", "0.05", "2.5", "15,000"], [0.0, 0.05, 2.5, 15_000.0].map(number));
        assert_eq!(seconds(12), [0, 2, 4, 6, 8, 10, 12]);
        assert_eq!(seconds(3), [0, 1, 2, 3]);
        assert_eq!(seconds(600), [0, 100, 200, 300, 400, 500, 600]);
    }
}
