//! A Jupyter client with the verbs that the tests need.

use crate::peer::Peer;
use baton_jupyter_wire::{
    connection::{Channel, ConnectionFile},
    message::{DELIMITER, Draft, Signer},
};
use bytes::Bytes;
use serde_json::{Value, json};

pub(crate) struct Client {
    signer: Signer,
    session: String,
    pub(crate) shell: Peer,
    pub(crate) control: Peer,
    pub(crate) iopub: Peer,
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: String,
    pub(crate) parent_id: String,
    pub(crate) content: Value,
}

/// What a cell caused.
#[derive(Debug)]
pub(crate) struct Told {
    /// Types of the iopub messages, with the state of a status and the text of a stream.
    pub(crate) iopub: Vec<String>,
    pub(crate) reply: Value,
}

impl Client {
    /// Returns once the kernel answers on shell and iopub.
    pub(crate) fn connect(connection: &ConnectionFile) -> Self {
        let session = uuid::Uuid::new_v4().simple().to_string();
        let peer = |channel, socket_type| {
            Peer::connect(
                &connection.endpoint(channel).unwrap(),
                socket_type,
                &session,
            )
        };
        let mut client = Self {
            signer: Signer::new(&connection.key(), connection.signature_scheme()).unwrap(),
            shell: peer(Channel::Shell, "DEALER"),
            control: peer(Channel::Control, "DEALER"),
            iopub: peer(Channel::Iopub, "SUB"),
            session: session.clone(),
        };
        client.iopub.subscribe("");
        client.await_subscription();
        client
    }

    /// Repeats a request until its iopub messages arrive: a subscription takes a moment, and
    /// earlier messages may be lost.
    fn await_subscription(&mut self) {
        let patience = std::time::Duration::from_millis(200);
        self.iopub.stream.set_patience(patience);
        loop {
            let asked = self.ask("kernel_info_request", &json!({}));
            let reply = self.reply_to(&asked);
            assert_eq!(reply["status"], "ok");
            let heard = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                self.collect_until_idle(&asked)
            }));
            if heard.is_ok() {
                self.iopub.stream.set_patience(crate::peer::PATIENCE);
                return;
            }
        }
    }

    pub(crate) fn sign(&self, draft: Draft) -> Vec<Bytes> {
        draft.sign(&self.signer, &self.session)
    }

    pub(crate) fn ask(&mut self, kind: &str, content: &Value) -> String {
        let draft = Draft::new(kind, content.to_string());
        let message_id = draft.message_id.clone();
        let frames = self.sign(draft);
        self.shell.send(&frames);
        message_id
    }

    pub(crate) fn ask_control(&mut self, kind: &str, content: &Value) {
        let frames = self.sign(Draft::new(kind, content.to_string()));
        self.control.send(&frames);
    }

    pub(crate) fn execute(&mut self, code: &str) -> String {
        let content = json!({
            "code": code, "silent": false, "store_history": true, "user_expressions": {},
            "allow_stdin": false, "stop_on_error": false,
        });
        self.ask("execute_request", &content)
    }

    pub(crate) fn run(&mut self, code: &str) -> Told {
        let asked = self.execute(code);
        Told {
            iopub: self.collect_until_idle(&asked),
            reply: self.reply_to(&asked),
        }
    }

    pub(crate) fn reply_to(&mut self, asked: &str) -> Value {
        loop {
            let message = read(self.shell.receive().expect("shell is open"));
            if message.parent_id == asked {
                return message.content;
            }
        }
    }

    pub(crate) fn collect_until_idle(&mut self, asked: &str) -> Vec<String> {
        let mut words = Vec::new();
        loop {
            let message = read(self.iopub.receive().expect("iopub is open"));
            if message.parent_id != asked {
                continue;
            }
            let said = message.content["execution_state"]
                .as_str()
                .or(message.content["text"].as_str());
            words.push(said.unwrap_or(&message.kind).to_owned());
            if words.last().is_some_and(|word| word == "idle") {
                return words;
            }
        }
    }

    /// Waits for a message of this type on iopub.
    pub(crate) fn await_iopub(&mut self, asked: &str, kind: &str) {
        loop {
            let message = read(self.iopub.receive().expect("iopub is open"));
            if message.parent_id == asked && message.kind == kind {
                return;
            }
        }
    }
}

pub(crate) fn read(frames: Vec<Bytes>) -> Message {
    let delimiter = frames.iter().position(|frame| frame == DELIMITER).unwrap();
    let part =
        |index: usize| -> Value { serde_json::from_slice(&frames[delimiter + index]).unwrap() };
    Message {
        kind: part(2)["msg_type"].as_str().unwrap().to_owned(),
        parent_id: part(3)["msg_id"].as_str().unwrap_or_default().to_owned(),
        content: part(5),
    }
}
