#!/bin/sh
# Chromium for the browser tests: the system's, else installed where that is possible, else said that it is missing.
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null && exit 0
done
[ -n "$PIPEWAVE_BROWSER" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Chromium for the browser tests"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 && exit 0
    echo "apt-get could not install chromium"
fi
echo "NO CHROMIUM: the page will NOT be tested in a browser (apt-get install chromium, or set PIPEWAVE_BROWSER)"
