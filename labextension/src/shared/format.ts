// Texts for sizes, times and names. Pure functions.

import { PathExt, Time } from '@jupyterlab/coreutils';
import { trans } from './translation';

/** Format a size in decimal units with three digits: "412 MB". */
export function formatBytes(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (Math.round(bytes) >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${Number(bytes.toPrecision(3))} ${units[unit]}`;
}

/** Format a duration with two digits: "0.18 s", "95 s", "4 min". */
export function formatSeconds(seconds: number): string {
  if (seconds >= 120) {
    return seconds < 7200
      ? `${Math.round(seconds / 60)} min`
      : `${Math.round(seconds / 3600)} h`;
  }
  return seconds < 10
    ? `${Number(Math.max(seconds, 0.01).toPrecision(2))} s`
    : `${Math.round(seconds)} s`;
}

/** Format the age of a time (seconds since the epoch): "2 hours ago". */
export function formatAge(time: number): string {
  return Time.formatHuman(new Date(time * 1000));
}

/** Format a time; one that is not today has its date. */
export function formatMoment(time: number): string {
  return formatted(time, 'short');
}

function formatted(time: number, timeStyle: 'short' | 'medium'): string {
  const moment = new Date(time * 1000);
  const language = document.documentElement.lang || 'en';
  const today = moment.toDateString() === new Date().toDateString();
  const form: Intl.DateTimeFormatOptions = { timeStyle };
  return new Intl.DateTimeFormat(
    language,
    today ? form : { ...form, dateStyle: 'medium' }
  ).format(moment);
}

/** Format a time with its seconds, so that two times close together have different texts. */
export function formatInstant(time: number): string {
  return formatted(time, 'medium');
}

/** Format a share of a whole: "64%". */
export function formatShare(part: number, whole: number): string {
  return whole > 0 ? `${Math.round((100 * part) / whole)}%` : '0%';
}

/** The last part of the path that JupyterLab gives a console's session: a number and a UUID. */
const CONSOLE = /^console-(\d+)-[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/;

/** Return the last part of a notebook's path, or the name of a console. */
export function nameOfPath(path: string): string {
  const name = PathExt.basename(path);
  const number = CONSOLE.exec(name)?.[1];
  return number ? trans.__('Console %1', number) : name || trans.__('Unnamed');
}
