/**
 * "Run on GPU in the Background": the whole notebook as a job, by `baton run --detach` on the server's side.
 *
 * A kernel of Baton's is started for this purpose in the notebook's folder (`baton_shim/notebook/in_background.py`), so
 * the notebook's own kernel may be busy, another or none, and Jupyter's server needs no extension.
 *
 * Invariant: the kernel ends, whatever becomes of the run.
 */

import { Dialog, showDialog, showErrorMessage } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { ServiceManager, Session } from '@jupyterlab/services';

const TARGET = 'baton.run';

interface Started {
  job: string;
  /** Where the result goes, from the notebook's folder. */
  notebook: string;
}

type Told = Started | { error: string };

/** Saves the notebook, starts the run and says what became of it. `open` shows a file of the server. */
export async function runInBackground(
  panel: NotebookPanel,
  services: ServiceManager.IManager,
  open: (path: string) => void
): Promise<void> {
  const path = services.contents.localPath(panel.context.path);
  const slash = path.lastIndexOf('/') + 1;
  const [folder, name] = [path.slice(0, slash), path.slice(slash)];
  let started: Started;
  try {
    if (panel.context.model.dirty) {
      await panel.context.save();
    }
    started = await start(folder, name, services, await spec(panel, services));
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    await showErrorMessage('The notebook was not started in the background', why);
    return;
  }
  const result = started.notebook.replace(/^\.\//, '');
  const shown = await showDialog({
    title: 'Runs on GPU in the background',
    body: [
      `${name} runs as job ${started.job}.`,
      `The result is written to ${result} while it runs.`,
      `In a terminal, “baton logs -f ${started.job.slice(-8)}” follows it, and “baton cancel ${started.job.slice(-8)}” stops it.`
    ].join(' '),
    buttons: [Dialog.cancelButton({ label: 'Close' }), Dialog.okButton({ label: 'Open Result' })]
  });
  if (shown.button.accept) {
    open(folder + result);
  }
}

/** The notebook's own kernel if it is Baton's, or else the first of Baton's. */
async function spec(panel: NotebookPanel, services: ServiceManager.IManager): Promise<string> {
  await services.kernelspecs.ready;
  const specs = Object.values(services.kernelspecs.specs?.kernelspecs ?? {});
  const own = panel.sessionContext.session?.kernel?.name;
  const names = specs.filter(spec => spec?.argv.includes('baton_shim')).map(spec => spec!.name);
  const name = names.find(name => name === own) ?? names[0];
  if (!name) {
    throw new Error('This server has no kernel “Python (shared GPU)”. In a terminal, “baton install” adds it.');
  }
  return name;
}

async function start(
  folder: string,
  notebook: string,
  services: ServiceManager.IManager,
  name: string
): Promise<Started> {
  const session = await services.sessions.startNew({
    path: `${folder}${notebook} in the background`,
    name: notebook,
    type: 'console',
    kernel: { name }
  });
  try {
    const told = await ask(session, notebook);
    if ('error' in told) {
      throw new Error(told.error);
    }
    return told;
  } finally {
    await session.shutdown();
  }
}

function ask(session: Session.ISessionConnection, notebook: string): Promise<Told> {
  return new Promise((resolve, reject) => {
    const kernel = session.kernel;
    if (!kernel) {
      reject(new Error('The kernel did not start'));
      return;
    }
    kernel.statusChanged.connect((_, status) => {
      if (status === 'dead') {
        reject(new Error('The kernel that was to start it ended. The log of Jupyter says why.'));
      }
    });
    const comm = kernel.createComm(TARGET);
    comm.onMsg = message => resolve(message.content.data as unknown as Told);
    comm.onClose = () => reject(new Error('Baton on this server is too old for this: update baton-jupyter'));
    comm.open({ notebook });
  });
}
