//! A course as it was, compared with the model's predictions for it, and for one GPU fewer or more.

use crate::{
    fit::Fit,
    forecast::{Effort, Forecast, PARTS, forecast, simulated},
};
use baton_charts::{Axis, Curve, Plot};
use baton_humanize::{approximate, people};

/// A shorter wait, in seconds, goes unnoticed.
const NOTICED: f64 = 1.0;

#[derive(Debug)]
pub struct Capacity {
    pub fit: Fit,
    pub gpus: usize,
    /// The number of cells that run at once on all GPUs.
    pub places: usize,
    /// Simulated with the observed times of edits and cells.
    pub as_they_were: Forecast,
    /// With exponential times of the same means.
    pub exponential: Forecast,
    /// With one GPU fewer; `None` if there is only one.
    pub fewer: Option<Forecast>,
    pub more: Forecast,
}

/// One observation or prediction of the course. Times are in seconds.
#[derive(Debug)]
pub struct Row {
    pub name: String,
    /// The share of cells that start within a second.
    pub at_once: f64,
    pub wait: f64,
    /// The times within which 50, 90 and 99 of 100 cells start; `None` if fewer were observed to start.
    pub waits: [Option<f64>; 3],
    /// The share of the time in which a slot is busy.
    pub busy: f64,
    pub cells_per_hour: f64,
}

impl Capacity {
    #[must_use]
    pub fn of(fit: Fit, gpus: usize, places: usize, effort: Effort) -> Self {
        let (gpus, people) = (gpus.max(1), fit.people);
        let of_one = places.div_ceil(gpus);
        let life = fit.life();
        let with = |places: usize| simulated(&life, people, places, effort);
        Self {
            as_they_were: with(places),
            exponential: forecast(&fit.rates, people, places, effort),
            fewer: (gpus > 1).then(|| with(places - of_one)),
            more: with(places + of_one),
            gpus,
            places,
            fit,
        }
    }

    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let Fit {
            waits, span, busy, ..
        } = &self.fit;
        let seen = Row {
            name: "as it was".to_owned(),
            at_once: 1.0 - waits.longer_than(NOTICED),
            wait: waits.mean(),
            waits: PARTS.map(|part| waits.percentile(part)),
            busy: busy / span / self.places as f64,
            cells_per_hour: 3600.0 * self.fit.runs.ended() as f64 / span,
        };
        let model = |name: &str, forecast: &Forecast| Row {
            name: name.to_owned(),
            at_once: 1.0 - forecast.longer_than(NOTICED),
            wait: forecast.wait,
            waits: forecast.waits.map(Some),
            busy: forecast.utilisation,
            cells_per_hour: 3600.0 * forecast.throughput,
        };
        let mut rows = vec![
            seen,
            model("predicted, times as they were", &self.as_they_were),
            model("predicted, exponential times", &self.exponential),
        ];
        let fewer = self.fewer.as_ref();
        rows.extend(fewer.map(|fewer| model("with 1 GPU fewer", fewer)));
        rows.push(model("with 1 GPU more", &self.more));
        rows
    }

    /// The table's content in sentences.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let wait = |forecast: &Forecast| {
            let [.., longest] = forecast.waits;
            format!(
                "{} on average, and 1 in 100 longer than {}",
                approximate(forecast.wait),
                approximate(longest)
            )
        };
        let gpus = |count: usize| match count {
            1 => "1 GPU".to_owned(),
            _ => format!("{count} GPUs"),
        };
        let mut sentences = vec![format!(
            "With {}, {} are predicted to wait {}.",
            gpus(self.gpus),
            self.people(),
            wait(&self.as_they_were)
        )];
        let others = [
            (self.gpus - 1, self.fewer.as_ref()),
            (self.gpus + 1, Some(&self.more)),
        ];
        for (count, other) in others {
            sentences
                .extend(other.map(|other| format!("With {} it is {}.", gpus(count), wait(other))));
        }
        sentences.push(self.goodness());
        sentences
    }

    /// The people of the course: all of the past, of whom perhaps only a few are present at a time.
    fn people(&self) -> String {
        let people = people(self.fit.people);
        let at_once = self.fit.people_at_once();
        match at_once {
            _ if self.fit.rates.departure == 0.0 => people,
            ..1.5 => format!("{people}, who hardly ever work at the same time,"),
            _ => format!("{people}, about {at_once:.0} of whom work at a time,"),
        }
    }

    /// How well exponential times describe this course.
    fn goodness(&self) -> String {
        let distance = self.fit.distance();
        let verdict = match distance {
            ..0.05 => "so the exact model describes this course well",
            ..0.15 => "so the exact model is roughly right",
            _ => "so trust the prediction with times as they were",
        };
        format!(
            "The cells' own times and exponential ones differ by {:.1} % of cells at most, {verdict}.",
            100.0 * distance
        )
    }

    /// The times of cells, as observed and as the exact model assumes.
    #[must_use]
    pub fn plot_of_runs(&self) -> Plot {
        let rate = self.fit.rates.execution;
        let percentile = self.fit.runs.percentile(0.99);
        let end = percentile
            .unwrap_or_else(|| self.fit.runs.longest())
            .max(5.0 / rate);
        let exponential = (0..=100).map(|step| end * f64::from(step) / 100.0);
        Plot {
            title: "How long cells run: as they were, and exponential".to_owned(),
            across: Axis::even("seconds", end),
            up: Axis::even("part of cells that run longer", 1.0),
            curves: vec![
                curve("as they were", self.fit.runs.curve()),
                curve(
                    "exponential",
                    exponential
                        .map(|time| (time, (-rate * time).exp()))
                        .collect(),
                ),
            ],
        }
    }

    /// Waits, as observed and as predicted.
    #[must_use]
    pub fn plot_of_waits(&self) -> Plot {
        let seen = self.fit.waits.percentile(0.99);
        let predicted = self.as_they_were.waits[2].max(self.exponential.waits[2]);
        let end =
            (1.1 * predicted.max(seen.unwrap_or_else(|| self.fit.waits.longest()))).max(NOTICED);
        Plot {
            title: "How long cells wait: as it was, and predicted".to_owned(),
            across: Axis::even("seconds", end),
            up: Axis::even("part of cells that wait longer", 1.0),
            curves: vec![
                curve("as it was", self.fit.waits.curve()),
                curve("predicted, times as they were", self.as_they_were.curve()),
                curve("predicted, exponential times", self.exponential.curve()),
            ],
        }
    }
}

fn curve(name: &str, points: Vec<(f64, f64)>) -> Curve {
    let name = name.to_owned();
    Curve { name, points }
}
