import { LabIcon } from '@jupyterlab/ui-components';

import branchSvg from '../../style/icons/branch.svg';
import historySvg from '../../style/icons/history.svg';
import parkSvg from '../../style/icons/park.svg';
import pinSvg from '../../style/icons/pin.svg';
import resumeSvg from '../../style/icons/resume.svg';
import saveSvg from '../../style/icons/save.svg';
import sessionsSvg from '../../style/icons/sessions.svg';
import suspendSvg from '../../style/icons/suspend.svg';

const icon = (name: string, svgstr: string) =>
  new LabIcon({ name: `gpuckpt:${name}`, svgstr });

/** A fork in the road. */
export const branchIcon = icon('branch', branchSvg);

/** A clock that runs backwards. */
export const historyIcon = icon('history', historySvg);

/** A parking sign. */
export const parkIcon = icon('park', parkSvg);

export const pinIcon = icon('pin', pinSvg);

/** A sun. */
export const resumeIcon = icon('resume', resumeSvg);

/** A camera. */
export const saveIcon = icon('save', saveSvg);

/** A moon over a line of snapshots. */
export const sessionsIcon = icon('sessions', sessionsSvg);

/** A moon. */
export const suspendIcon = icon('suspend', suspendSvg);
