/** OpenRuns: which runs of a kernel are open in the list; persisted in this tab, over reloads. */

export class OpenRuns {
  private readonly key: string;
  private readonly open: Set<number>;

  constructor(kernel: string) {
    this.key = `nbpipe:open:${kernel}`;
    this.open = new Set(this.read());
  }

  has(run: number): boolean {
    return this.open.has(run);
  }

  set(run: number, open: boolean): void {
    if (open) {
      this.open.add(run);
    } else {
      this.open.delete(run);
    }
    this.write();
  }

  /** Called when the kernel is restarted: its runs are counted from 1 again. */
  clear(): void {
    this.open.clear();
    this.write();
  }

  private read(): number[] {
    try {
      const found: unknown = JSON.parse(sessionStorage.getItem(this.key) ?? "[]");
      return Array.isArray(found) ? found.filter((run) => Number.isSafeInteger(run)) : [];
    } catch {
      return []; // a page may be refused its storage
    }
  }

  private write(): void {
    try {
      if (this.open.size > 0) {
        sessionStorage.setItem(this.key, JSON.stringify([...this.open]));
      } else {
        sessionStorage.removeItem(this.key);
      }
    } catch {
      // as above
    }
  }
}
