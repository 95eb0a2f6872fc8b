#!/usr/bin/env bash
# Builds the real parts that the tests run against (etcd, kube-apiserver,
# kube-controller-manager, kubectl, and the Talos conformance program) from
# their Go modules, once, into a cache folder outside the checkout, and prints
# that folder on stdout. Progress goes to stderr: a cold build takes minutes.
#
#   KUBEBUILDER_ASSETS  a folder that already has etcd, kube-apiserver,
#                       kube-controller-manager and kubectl: used as it is
#   ICHOR_CACHE         where to keep what is built (default: ~/.cache/ichor)
#
# Usage: build.sh control-plane | conformance
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${ICHOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ichor}
what=${1:-control-plane}

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# A folder per content of the module files: a changed version is built anew,
# an unchanged one is found again by every checkout.
key() { cat "$here/build.sh" "$@" | sha256sum | cut -c1-16; }

# build FOLDER OUTPUT PACKAGE LDFLAGS
build() {
  local module=$1 out=$2 package=$3 ldflags=$4 started=$SECONDS pid
  [ -x "$out" ] && return 0
  say "building $(basename "$out") from $package ..."
  (cd "$here/$module" && CGO_ENABLED=0 go build -trimpath -ldflags "$ldflags" -o "$out.part" "$package") >&2 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || break; sleep 2; done
    if kill -0 "$pid" 2>/dev/null; then say "  still building $(basename "$out"), $((SECONDS - started)) s"; fi
  done
  wait "$pid" || die "failed to build $(basename "$out")"
  mv "$out.part" "$out"
  say "  $(basename "$out") built in $((SECONDS - started)) s"
}

programs="etcd kube-apiserver kube-controller-manager kubectl"
case $what in
control-plane)
  if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    for program in $programs; do
      [ -x "$KUBEBUILDER_ASSETS/$program" ] ||
        die "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no $program; put it there, or unset the variable to have it built"
    done
    printf '%s\n' "$KUBEBUILDER_ASSETS"
    exit 0
  fi
  dir=$cache/control-plane/$(key "$here"/kubernetes/go.{mod,sum} "$here"/etcd/go.{mod,sum})
  complete=1
  for program in $programs; do [ -x "$dir/$program" ] || complete=0; done
  if [ $complete = 0 ]; then
    command -v go >/dev/null || die "go is not installed (1.26 or newer); install it, or set KUBEBUILDER_ASSETS to a folder with: $programs"
    mkdir -p "$dir"
    exec 9>"$dir/.lock"; flock 9
    say "the control plane for the tests is not built yet: about 11 minutes on two cores, once; it is kept in $dir"
    version=v1.36.3
    flags="-s -w"
    for pair in gitVersion=$version gitMajor=1 gitMinor=36 gitTreeState=clean gitCommit=unknown buildDate=1970-01-01T00:00:00Z; do
      flags="$flags -X k8s.io/component-base/version.$pair"
    done
    build etcd "$dir/etcd" go.etcd.io/etcd/server/v3 "-s -w"
    build kubernetes "$dir/kubectl" k8s.io/kubernetes/cmd/kubectl "$flags"
    build kubernetes "$dir/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver "$flags"
    build kubernetes "$dir/kube-controller-manager" k8s.io/kubernetes/cmd/kube-controller-manager "$flags"
  fi
  printf '%s\n' "$dir"
  ;;
conformance)
  command -v go >/dev/null || die "go is not installed (1.26 or newer)"
  dir=$cache/conformance/$(key "$here"/conformance/go.{mod,sum} "$here"/conformance/*.go)
  mkdir -p "$dir"
  exec 9>"$dir/.lock"; flock 9
  build conformance "$dir/talos-conformance" . "-s -w"
  printf '%s\n' "$dir/talos-conformance"
  ;;
*) die "usage: build.sh control-plane | conformance" ;;
esac
