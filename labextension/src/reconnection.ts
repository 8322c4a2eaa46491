// After the server was away, what its events told meanwhile is lost: it is asked again.

import type { ServiceManager } from '@jupyterlab/services';

/** Seconds between two attempts: at first, and at most. */
const FIRST_WAIT = 1;
const LONGEST_WAIT = 5;

/** How often a server that stays away is asked. */
const ATTEMPTS = 60;

/**
 * Call `ask` after the connection to the server was lost, until it gives true: the server has answered.
 *
 * The stream of events comes back some time after that, by itself and without a word. So `ask` is called once more when
 * something is heard again.
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
