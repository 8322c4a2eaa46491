// Repeated requests after a lost connection, because the events of the meantime are lost.

import type { ServiceManager } from '@jupyterlab/services';

/** The seconds between two attempts, at first and at most. */
const FIRST_WAIT = 1;
const LONGEST_WAIT = 5;

/** The number of attempts. */
const ATTEMPTS = 60;

/**
 * Call `ask` after the connection to the server was lost, until it returns true because the server has answered.
 *
 * The stream of events reconnects some time later, without any signal. So `ask` is called once more at the next event.
 */
export function askAgainAfterOutages(
  services: ServiceManager.IManager,
  ask: () => Promise<boolean>
): void {
  let isAsking = false;
  let isStale = false;
  services.connectionFailure.connect(async () => {
    isStale = true;
    if (isAsking) {
      return;
    }
    isAsking = true;
    let wait = FIRST_WAIT;
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      await new Promise(resolve => setTimeout(resolve, wait * 1000));
      wait = Math.min(2 * wait, LONGEST_WAIT);
      if (await ask()) {
        break;
      }
    }
    isAsking = false;
  });
  const onHeard = () => {
    if (isStale && !isAsking) {
      isStale = false;
      void ask();
    }
  };
  services.events.stream.connect(onHeard);
  services.kernels.runningChanged.connect(onHeard);
}
