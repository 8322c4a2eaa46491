// What all banners above a notebook have in common: they are as high as what they say.

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

  /** For the `ref` of the content, an element of the class `jp-GpuCkptBanner-content`. */
  protected readonly measure = (content: HTMLElement | null): void => {
    this._observer?.disconnect();
    if (content) {
      this._observer?.observe(content);
    }
  };

  /** The header above a notebook gives a widget its least height and no more: here that of its content, however it wraps. */
  private readonly _observer =
    typeof ResizeObserver === 'undefined'
      ? null
      : new ResizeObserver(([{ target }]) => {
          this.node.style.minHeight = `${(target as HTMLElement).offsetHeight}px`;
          this.parent?.fit();
        });
}
