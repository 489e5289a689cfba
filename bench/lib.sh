# What the benches share, on top of tests/interop/lib.sh: the binary, the head of a report, rows of a table. Sourced by them.
BINDERY=${BINDERY:-${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}/release/bindery}
. "$(dirname "${BASH_SOURCE[0]}")/../tests/interop/lib.sh"

made_by() { # command: how to make the report again
  printf 'Made by `%s` at commit %s' "$1" "$(git -C "$repo" rev-parse --short HEAD 2>/dev/null || echo unknown)"
  git -C "$repo" diff --quiet HEAD 2>/dev/null || printf ' with local changes'
}

row() { # first cells, keys: a row of the runs in $scratch/figures whose lines begin with the keys; each figure behind them is a cell
  # with the median [min–max]. No runs, no row. Of more figures than --figures the rest is not shown.
  local figures=0
  [ "$1" != --figures ] || { figures=$2; shift 2; }
  awk -v cells="$1" -v keys="$2" -v figures="$figures" '
    function show(v) { return v >= 1000 ? sprintf("%.0f", v) : v >= 100 ? sprintf("%.1f", v) : v >= 1 ? sprintf("%.2f", v) : sprintf("%.3f", v) }
    index($0, keys " ") == 1 {
      n++; first = split(keys, unused, " ") + 1; last = figures ? first + figures - 1 : NF
      for (i = first; i <= last; i++) x[i, n] = $i + 0
    }
    END {
      if (!n) exit
      printf "| %s", cells
      for (i = first; i <= last; i++) {
        for (a = 1; a <= n; a++) for (b = a + 1; b <= n; b++) if (x[i, b] < x[i, a]) { t = x[i, a]; x[i, a] = x[i, b]; x[i, b] = t }
        m = n % 2 ? x[i, (n + 1) / 2] : (x[i, n / 2] + x[i, n / 2 + 1]) / 2
        printf " | %s [%s–%s]", show(m), show(x[i, 1]), show(x[i, n])
      }
      print " |"
    }' "$scratch/figures"
}

publish() { # page, write or nothing: shows what the function table prints, and puts it into docs/benchmarks
  table >"$scratch/table.md"
  cat "$scratch/table.md"
  [ -z "$2" ] || "$repo/bench/section" "$1" "$scratch/table.md"
}
