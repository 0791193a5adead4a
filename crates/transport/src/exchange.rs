//! The token of a notebook server of JupyterHub opens that server, too. So it is shown to the broker once, for a token
//! that opens nothing else; all requests carry that one until it is about to expire.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use reqwest::{Method, header::AUTHORIZATION};

use crate::{Api, Dial, LinkError, dial::Token};

const PATH: &str = "/v1/notebook-token";

/// What a notebook server's token was exchanged for last. Not `Debug`: it holds a token.
#[derive(Default)]
pub(crate) struct Exchanged(Mutex<Option<Given>>);

#[derive(Clone)]
struct Given {
    token: Token,
    /// From then on another one is asked for, while this one still counts. By the clock of the day, which goes on while
    /// the machine sleeps.
    renewed: SystemTime,
    expires: SystemTime,
}

#[derive(serde::Deserialize)]
struct Answer {
    token: String,
    expires_in_seconds: u64,
}

impl Exchanged {
    /// The token to show now. A Hub that is away is not needed as long as the last one counts.
    pub(crate) async fn token(&self, dial: &Dial, of_server: &Token) -> Result<Token, LinkError> {
        let given = self.given();
        let now = SystemTime::now();
        if let Some(given) = &given
            && now < given.renewed
        {
            return Ok(given.token.clone());
        }
        match exchange(dial, of_server, now).await {
            Ok(new) => {
                let token = new.token.clone();
                self.set(Some(new));
                Ok(token)
            }
            Err(error) => match given {
                Some(given) if now < given.expires && error.may_pass() => Ok(given.token),
                _ => Err(error),
            },
        }
    }

    /// The broker does not know it any more.
    pub(crate) fn forget(&self) {
        self.set(None);
    }

    fn given(&self) -> Option<Given> {
        let given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.clone()
    }

    fn set(&self, new: Option<Given>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

async fn exchange(dial: &Dial, of_server: &Token, now: SystemTime) -> Result<Given, LinkError> {
    // Without a token of its own, so that this request asks for no other.
    let dial = Dial {
        token: None,
        ..dial.clone()
    };
    let api = Api::new(&dial)?;
    let request = api.request(Method::POST, PATH);
    let request = request.header(AUTHORIZATION, of_server.bearer());
    let answer: Answer = api.answer(request, PATH).await?;
    let lifetime = Duration::from_secs(answer.expires_in_seconds);
    Ok(Given {
        token: Token::new(&answer.token),
        renewed: now + lifetime / 2,
        expires: now + lifetime,
    })
}
