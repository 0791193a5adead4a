//! Times on pages: in the zone of the courses file. Without one, `page.js` writes them in the
//! browser's zone; without a script they are in UTC.

use crate::web::Shared;
use baton_broker_queue::courses::moment_ms;
use jiff::{Timestamp, tz::TimeZone};
use maud::{Markup, html};

#[derive(Clone)]
pub(super) struct Zone(Option<TimeZone>);

impl Zone {
    pub(super) fn of(shared: &Shared) -> Self {
        Self(shared.courses.borrow().time_zone.clone())
    }

    /// `14:05`, with the full time as a tooltip.
    pub(super) fn clock(&self, ms: i64) -> Markup {
        let (text, title) = (self.clock_text(ms), self.text(ms));
        html! { time data-clock=[self.for_browsers(ms)] title=(title) { (text) } }
    }

    /// The time with its date and zone.
    pub(super) fn moment(&self, ms: i64) -> Markup {
        html! { time data-moment=[self.for_browsers(ms)] { (self.text(ms)) } }
    }

    /// For charts, whose texts are not HTML elements.
    pub(super) fn clock_text(&self, ms: i64) -> String {
        self.written(ms, "%H:%M")
    }

    /// The full time as text, for attributes.
    pub(super) fn text(&self, ms: i64) -> String {
        self.written(ms, "%Y-%m-%d %H:%M:%S %Z")
    }

    /// The time that a script must rewrite; `None` if the zone is known.
    pub(super) fn for_browsers(&self, ms: i64) -> Option<i64> {
        self.0.is_none().then_some(ms)
    }

    /// The value of a form's field.
    pub(super) fn field(&self, ms: i64) -> String {
        let time = Timestamp::from_millisecond(ms);
        let time = time.map(|time| time.to_zoned(self.of_forms()));
        time.map_or_else(
            |_| String::new(),
            |time| time.strftime("%Y-%m-%dT%H:%M").to_string(),
        )
    }

    /// Parses a form's field to milliseconds since 1970.
    pub(super) fn of_field(&self, text: &str) -> anyhow::Result<i64> {
        moment_ms(text, &self.of_forms())
    }

    pub(super) fn name_in_forms(&self) -> String {
        let zone = self.of_forms();
        let name = zone.iana_name().unwrap_or("the broker's time zone");
        name.to_owned()
    }

    /// The zone of the courses file; by default the one in which that file is read.
    pub(super) fn of_forms(&self) -> TimeZone {
        self.0.clone().unwrap_or_else(TimeZone::system)
    }

    fn written(&self, ms: i64, format: &str) -> String {
        let zone = self.0.clone().unwrap_or(TimeZone::UTC);
        Timestamp::from_millisecond(ms).map_or_else(
            |_| String::new(),
            |time| time.to_zoned(zone).strftime(format).to_string(),
        )
    }
}
