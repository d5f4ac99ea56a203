// Pictures follow the theme that a reader has chosen for the page; `auto` is the system's.
const sources = document.querySelectorAll("picture source");
const media = {dark: "all", light: "not all"};
const follow = () => sources.forEach(source => {
  source.media = media[document.body.dataset.theme] ?? "(prefers-color-scheme: dark)";
});
new MutationObserver(follow).observe(document.body, {attributeFilter: ["data-theme"]});
follow();
