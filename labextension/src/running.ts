/**
 * Asks a kernel that is busy which cell runs.
 *
 * A busy kernel answers on a subshell only. JupyterLab learns that a kernel has subshells from `kernel_info_reply`,
 * which a busy kernel does not send; so the requests are made here. A kernel without subshells does not answer.
 */

import { KernelMessage, type Kernel } from '@jupyterlab/services';

import type { Running } from './cells';

const TARGET = 'baton.running';

export async function askWhatRuns(
  kernel: Kernel.IKernelConnection,
  onRunning: (running: Running) => void
): Promise<void> {
  const from = { session: kernel.clientId, username: kernel.username };
  const create = KernelMessage.createMessage<KernelMessage.ICreateSubshellRequestMsg>({
    ...from,
    channel: 'control',
    msgType: 'create_subshell_request',
    content: {}
  });
  const created = (await kernel.sendControlMessage(create, true).done) as KernelMessage.ICreateSubshellReplyMsg;
  const subshellId = created.content.subshell_id;
  if (!subshellId || kernel.isDisposed) {
    return;
  }
  const comm = kernel.createComm(TARGET);
  comm.onMsg = message => onRunning(message.content.data as unknown as Running);
  comm.onClose = () => {
    const remove = KernelMessage.createMessage<KernelMessage.IDeleteSubshellRequestMsg>({
      ...from,
      channel: 'control',
      msgType: 'delete_subshell_request',
      content: { subshell_id: subshellId }
    });
    kernel.sendControlMessage(remove, true);
  };
  const open = KernelMessage.createMessage<KernelMessage.ICommOpenMsg<'shell'>>({
    ...from,
    channel: 'shell',
    msgType: 'comm_open',
    subshellId,
    content: { comm_id: comm.commId, target_name: TARGET, data: {} }
  });
  kernel.sendShellMessage(open, false, true);
}
