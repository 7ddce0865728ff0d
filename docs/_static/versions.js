// Versions of these pages in the sidebar, and a line on top of old ones. Only a site of tools/site_versions.py has the list.
document.addEventListener("DOMContentLoaded", async () => {
  const root = new URL(document.documentElement.dataset.content_root || "./", location.href);
  const here = root.pathname.split("/").filter(Boolean).pop();
  const answer = await fetch(new URL("../versions.json", root)).catch(() => null);
  if (!answer || !answer.ok) return;
  const versions = await answer.json();
  if (!versions.includes(here)) return;
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "Version of these pages");
  for (const version of versions) choice.add(new Option(version, version, false, version === here));
  choice.onchange = () => (location.href = new URL(`../${choice.value}/index.html`, root));
  document.querySelector(".sidebar-brand")?.after(choice);
  if (here === versions[0]) return;
  const old = document.createElement("p");
  old.append("These pages are about version ", here, ". The newest is ");
  const link = document.createElement("a");
  link.href = new URL(`../${versions[0]}/index.html`, root);
  link.append(versions[0]);
  old.append(link, ".");
  document.querySelector("article")?.prepend(old);
});
