//! Which cells have begun, according to the kernel's own messages on iopub.
//!
//! **Invariant:** pure; it decides when an inserted message may follow, and never waits.

use baton_jupyter_wire::{message::message_id, wire::MessageView};
use serde::Deserialize;
use std::collections::{HashSet, VecDeque};

/// Finished cells are forgotten first. A client rarely has more than one unfinished cell.
const REMEMBERED_CELLS: usize = 64;

/// What a message of the kernel shows about the cell that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CellEvent {
    Busy(String),
    Input(String),
    Idle(String),
    /// The cell has shown something.
    Output(String),
}

impl CellEvent {
    pub(super) fn read(message: MessageView<'_>) -> Option<Self> {
        #[derive(Deserialize)]
        struct Header<'a> {
            msg_type: &'a str,
        }
        #[derive(Deserialize)]
        struct Status {
            execution_state: String,
        }
        let header: Header<'_> = serde_json::from_slice(message.header()?).ok()?;
        let parent = || message_id(message.parent_header()?);
        match header.msg_type {
            "execute_input" => Some(Self::Input(parent()?)),
            kind if is_visible(kind) => Some(Self::Output(parent()?)),
            "status" => {
                let status: Status = serde_json::from_slice(message.content()?).ok()?;
                match status.execution_state.as_str() {
                    "busy" => Some(Self::Busy(parent()?)),
                    "idle" => Some(Self::Idle(parent()?)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// Whether a message of this kind shows something below its cell.
pub(crate) fn is_visible(kind: &str) -> bool {
    matches!(kind, "stream" | "display_data" | "execute_result" | "error")
}

#[derive(Debug, Default)]
pub(super) struct CellLog {
    cells: VecDeque<Cell>,
    /// Cells to remember although they are over.
    kept: HashSet<String>,
    /// The number of beginnings noted so far.
    noted: u64,
}

/// Beginnings are numbered in the order in which they were noted.
#[derive(Debug)]
struct Cell {
    message_id: String,
    busy: u64,
    /// When its `execute_input`, or something that follows it, was seen.
    input: Option<u64>,
    over: bool,
    has_output: bool,
}

impl CellLog {
    pub(super) fn note(&mut self, event: &CellEvent) {
        match event {
            CellEvent::Busy(message_id) => {
                self.cell(message_id);
            }
            CellEvent::Input(message_id) => self.note_input(message_id),
            CellEvent::Idle(message_id) => self.cell(message_id).over = true,
            CellEvent::Output(message_id) => {
                let mut newest_first = self.cells.iter_mut().rev();
                if let Some(cell) = newest_first.find(|cell| cell.message_id == *message_id) {
                    cell.has_output = true;
                }
            }
        }
    }

    /// Notes a message of a cell whose `busy` and `execute_input` were not seen because this viewer
    /// joined later.
    pub(super) fn note_running(&mut self, message_id: &str) {
        if self.find(message_id).is_none() {
            self.note_input(message_id);
        }
    }

    /// Whether output of the cell may be shown: it follows `execute_input`, unless the cell is
    /// silent and has none.
    pub(super) fn has_begun(&self, message_id: &str, silent: bool) -> bool {
        self.beginning(message_id, silent).is_some()
    }

    /// Whether [`Self::has_begun`] was already true when only this many beginnings had been noted.
    pub(super) fn had_begun(&self, message_id: &str, silent: bool, noted: u64) -> bool {
        let beginning = self.beginning(message_id, silent);
        beginning.is_some_and(|number| number < noted)
    }

    pub(super) fn is_over(&self, message_id: &str) -> bool {
        self.find(message_id).is_some_and(|cell| cell.over)
    }

    pub(super) fn has_output(&self, message_id: &str) -> bool {
        self.find(message_id).is_some_and(|cell| cell.has_output)
    }

    pub(super) fn keep(&mut self, message_id: &str) {
        self.kept.insert(message_id.to_owned());
    }

    pub(super) fn let_go(&mut self, message_id: &str) {
        self.kept.remove(message_id);
    }

    pub(super) fn noted(&self) -> u64 {
        self.noted
    }

    fn beginning(&self, message_id: &str, silent: bool) -> Option<u64> {
        let cell = self.find(message_id)?;
        if silent { Some(cell.busy) } else { cell.input }
    }

    fn find(&self, message_id: &str) -> Option<&Cell> {
        let mut newest_first = self.cells.iter().rev();
        newest_first.find(|cell| cell.message_id == message_id)
    }

    fn note_input(&mut self, message_id: &str) {
        let number = self.noted + 1;
        let cell = self.cell(message_id);
        if cell.input.is_none() {
            cell.input = Some(number);
            self.noted = number + 1;
        }
    }

    fn cell(&mut self, message_id: &str) -> &mut Cell {
        let known = |cell: &Cell| cell.message_id == message_id;
        let index = self.cells.iter().rposition(known).unwrap_or_else(|| {
            if self.cells.len() == REMEMBERED_CELLS {
                let may_go = |cell: &Cell| cell.over && !self.kept.contains(&cell.message_id);
                let oldest = self.cells.iter().position(may_go);
                self.cells.remove(oldest.unwrap_or_default());
            }
            self.cells.push_back(Cell {
                message_id: message_id.to_owned(),
                busy: self.noted,
                input: None,
                over: false,
                has_output: false,
            });
            self.noted += 1;
            self.cells.len() - 1
        });
        &mut self.cells[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(events: &[CellEvent]) -> CellLog {
        let mut log = CellLog::default();
        events.iter().for_each(|event| log.note(event));
        log
    }

    fn busy(id: &str) -> CellEvent {
        CellEvent::Busy(id.to_owned())
    }

    fn input(id: &str) -> CellEvent {
        CellEvent::Input(id.to_owned())
    }

    #[test]
    fn output_follows_the_input_or_the_busy_of_a_silent_cell() {
        let check = |events: &[CellEvent], silent, expected| {
            assert_eq!(log(events).has_begun("a", silent), expected, "{events:?}");
        };
        check(&[], false, false);
        check(&[busy("b"), input("b")], false, false);
        check(&[busy("a")], false, false);
        check(&[busy("a")], true, true);
        check(&[busy("a"), input("a")], false, true);
        check(
            &[busy("a"), input("a"), CellEvent::Idle("a".to_owned())],
            false,
            true,
        );
    }

    #[test]
    fn a_viewer_that_comes_late_waits_for_no_input() {
        let mut late = CellLog::default();
        late.note_running("a");
        assert!(late.has_begun("a", false));
        let mut on_time = log(&[busy("a")]);
        on_time.note_running("a");
        assert!(!on_time.has_begun("a", false));
    }

    #[test]
    fn beginnings_are_told_from_later_ones() {
        let mut log = log(&[busy("a"), input("a"), busy("b")]);
        let then = log.noted();
        log.note(&input("b"));
        assert!(log.had_begun("a", false, then));
        assert!(log.had_begun("b", true, then));
        assert!(!log.had_begun("b", false, then));
        assert!(log.had_begun("b", false, log.noted()));
    }

    #[test]
    fn what_a_cell_has_shown_is_known() {
        let mut log = log(&[busy("a"), input("a"), busy("b")]);
        log.note(&CellEvent::Output("a".to_owned()));
        log.note(&CellEvent::Output("of an unknown cell".to_owned()));
        assert!(log.has_output("a") && !log.has_output("b"));
        assert_eq!(log.cells.len(), 2);
    }

    #[test]
    fn a_long_cell_is_not_forgotten_for_short_requests() {
        let mut log = log(&[busy("long"), input("long")]);
        for number in 0..1000 {
            let id = format!("comm-{number}");
            log.note(&busy(&id));
            log.note(&CellEvent::Idle(id));
        }
        assert!(log.has_begun("long", false));
        assert_eq!(log.cells.len(), REMEMBERED_CELLS);
    }

    #[test]
    fn a_kept_cell_is_not_forgotten_after_its_end() {
        let mut log = log(&[busy("a"), input("a"), CellEvent::Idle("a".to_owned())]);
        let others = |log: &mut CellLog| {
            for number in 0..100 {
                log.note(&CellEvent::Idle(number.to_string()));
            }
        };
        log.keep("a");
        others(&mut log);
        assert!(log.is_over("a"));
        log.let_go("a");
        others(&mut log);
        assert!(!log.is_over("a"));
    }
}
