/**
 * A cell that is run before the page is connected waits for the notebook's kernel.
 *
 * JupyterLab would start another kernel for it, and then end the first and lose the variables.
 */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Session } from '@jupyterlab/services';

export function keepKernel(context: ISessionContext, sessions: Session.IManager): void {
  const start = context.startKernel.bind(context);
  context.startKernel = async () => {
    // `initialize` calls this only once the sessions are known and none has this path, so it never waits for itself.
    if (!sessions.isReady) {
      await sessions.ready;
    }
    const exists = [...sessions.running()].some(({ path }) => path === context.path);
    return exists && !context.session ? context.initialize() : start();
  };
}
