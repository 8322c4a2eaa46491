// The base class of all banners above a notebook: its height is that of its text.

import { ReactWidget } from '@jupyterlab/apputils';

export abstract class FittedBanner extends ReactWidget {
  constructor() {
    super();
    this.addClass('jp-GpuCkptBanner');
  }

  dispose(): void {
    this._observer?.disconnect();
    super.dispose();
  }

  /** The value for the `ref` of the content, an element of the class `jp-GpuCkptBanner-content`. */
  protected readonly measure = (content: HTMLElement | null): void => {
    this._observer?.disconnect();
    if (content) {
      this._observer?.observe(content);
    }
  };

  /** Sets the minimum height to that of the wrapped content: the header above a notebook gives a widget only its minimum height. */
  private readonly _observer =
    typeof ResizeObserver === 'undefined'
      ? null
      : new ResizeObserver(([{ target }]) => {
          this.node.style.minHeight = `${(target as HTMLElement).offsetHeight}px`;
          this.parent?.fit();
        });
}
