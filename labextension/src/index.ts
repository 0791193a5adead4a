/**
 * Shows under its `%%gpu` cell what arrived while no page of the notebook was open.
 *
 * JupyterLab shows output only to the page that ran the cell. When a page opens on a kernel of Baton's, this extension
 * opens a comm there (`baton_shim/notebook/pages.py`) and is told which cell runs and what earlier cells showed. It
 * follows the running cell, and puts complete outputs in their places.
 *
 * Invariant: a cell that this page has run itself is not touched.
 */

import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';

import { Followed, place, save, type Complete, type Running } from './cells';
import { askWhatRuns } from './running';

const TARGET = 'baton.output';

type Told = { running?: Running; cell?: Complete; save?: string };

async function isBaton(kernel: Kernel.IKernelConnection): Promise<boolean> {
  const spec = await kernel.spec;
  return spec?.argv.includes('baton_shim') ?? false;
}

/** When the file was last written, as far as this page knows; in seconds since the epoch. */
function saved(panel: NotebookPanel): number {
  const modified = panel.context.contentsModel?.last_modified;
  return modified ? Date.parse(modified) / 1000 : 0;
}

async function listen(panel: NotebookPanel, kernel: Kernel.IKernelConnection): Promise<void> {
  if (!(await isBaton(kernel)) || kernel.isDisposed) {
    return;
  }
  let followed: Followed | null = null;
  const onRunning = (running: Running): void => {
    if (followed?.request !== running.request) {
      followed?.end();
      followed = Followed.begin(panel, kernel, running);
    }
  };
  const comm = kernel.createComm(TARGET);
  comm.onMsg = message => {
    const told = message.content.data as Told;
    if (told.running) {
      onRunning(told.running);
    }
    if (told.cell) {
      if (followed?.request === told.cell.request) {
        followed.end();
        followed = null;
      }
      if (place(panel, told.cell)) {
        comm.send({ placed: told.cell.request });
      }
    }
    if (told.save) {
      save(panel);
    }
  };
  comm.open({ saved: saved(panel) });
  if (kernel.status !== 'idle') {
    await askWhatRuns(kernel, onRunning);
  }
}

async function follow(panel: NotebookPanel): Promise<void> {
  await panel.context.ready;
  const session = panel.sessionContext;
  const connect = (): void => {
    const kernel = session.session?.kernel;
    if (kernel) {
      void listen(panel, kernel);
    }
  };
  session.kernelChanged.connect(connect);
  connect();
}

export default {
  id: 'baton-jupyter:output',
  description: 'Shows under its %%gpu cell what arrived while no page was open.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_: unknown, tracker: INotebookTracker): void => {
    tracker.widgetAdded.connect((_, panel) => void follow(panel));
  }
};
