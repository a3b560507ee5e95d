/** Which sections a person opened or closed: kept for each widget, whatever view shows it. */

export class Sections {
  private readonly chosen = new Map<string, boolean>();

  isOpen(name: string, otherwise: boolean): boolean {
    return this.chosen.get(name) ?? otherwise;
  }

  set(name: string, open: boolean): void {
    this.chosen.set(name, open);
  }

  toggle(name: string): void {
    this.set(name, !this.isOpen(name, false));
  }
}

/** A <details> whose state is kept, from the click on: its own event comes later. */
export function keep(
  details: HTMLDetailsElement,
  sections: Sections,
  name: string,
  open: boolean,
): void {
  details.open = sections.isOpen(name, open);
  details
    .querySelector("summary")
    ?.addEventListener("click", () => sections.set(name, !details.open));
  details.addEventListener("toggle", () => sections.set(name, details.open));
}
