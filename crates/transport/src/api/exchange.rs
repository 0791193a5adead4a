//! Exchanges the token of a JupyterHub notebook server. That token also opens the notebook server,
//! so the broker sees it only once and returns a token that opens nothing else. All requests carry
//! that one until it is about to expire.

use super::Api;
use crate::{
    Dial, LinkError, Token,
    token::{Exchanged, Given},
};
use reqwest::{Method, header::AUTHORIZATION};
use std::time::{Duration, SystemTime};

const PATH: &str = "/v1/notebook-token";

#[derive(serde::Deserialize)]
struct Answer {
    token: String,
    expires_in_seconds: u64,
}

/// The value of a request's `Authorization` header.
pub(crate) async fn authorization(dial: &Dial) -> Result<Option<String>, LinkError> {
    let Some(token) = &dial.token else {
        return Ok(None);
    };
    Ok(Some(match token.exchanged() {
        Some(exchanged) => current(exchanged, dial, token).await?.bearer(),
        None => token.bearer(),
    }))
}

/// The token to use now. While the last one is valid, a Hub that cannot be reached does no harm.
async fn current(
    exchanged: &Exchanged,
    dial: &Dial,
    of_server: &Token,
) -> Result<Token, LinkError> {
    let given = exchanged.given();
    let now = SystemTime::now();
    if let Some(given) = &given
        && now < given.renewed
    {
        return Ok(given.token.clone());
    }
    match exchange(dial, of_server, now).await {
        Ok(new) => {
            let token = new.token.clone();
            exchanged.set(Some(new));
            Ok(token)
        }
        Err(error) => match given {
            Some(given) if now < given.expires && error.may_pass() => Ok(given.token),
            _ => Err(error),
        },
    }
}

async fn exchange(dial: &Dial, of_server: &Token, now: SystemTime) -> Result<Given, LinkError> {
    // Without a token, so that this request does not start another exchange.
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
