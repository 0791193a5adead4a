//! An invalid field of a request.

/// A field with an invalid value, and what is wrong, such as `reason` and `is missing`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {says}", self.called())]
pub struct Wrong {
    /// Its name in the API or in a form.
    pub field: &'static str,
    pub says: String,
}

impl Wrong {
    pub fn new(field: &'static str, says: impl Into<String>) -> Self {
        let says = says.into();
        Self { field, says }
    }

    /// What people call the field. They wrote it in a form, as an option of a command or in the courses file.
    fn called(&self) -> &'static str {
        match self.field {
            "reason" => "The reason",
            "message" => "The message",
            "paused" => "The reason of the pause",
            "weight" => "The weight",
            "most_weight" => "The largest weight (most_weight)",
            "timeout" | "timeout_ms" => "The time limit",
            "longest" | "longest_timeout_ms" => "The longest time limit",
            "until" => "The deadline",
            "deadlines" => "Deadlines",
            "before" => "The time before the deadline",
            "boost" => "The weight of the deadline",
            "timetable" => "The timetable",
            "person" => "The person",
            "gpu_time" | "gpu_time_ms" => "The GPU time",
            "granted_until" | "until_ms" => "The end",
            field => field,
        }
    }
}
