// Command vendor shows the limit of a service: workers call a vendor that answers 429 above its
// quota, on three servers of Lucius with one PostgreSQL. It does the same jobs three times, with a
// limit, with workers that only report the 429s, and with neither, and prints a table. The exit
// code is 1 if a job failed under the limit, or the limit did not keep its promise.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

func main() {
	d := demo{out: os.Stdout}
	flag.StringVar(&d.lucius, "lucius", "bin/lucius", "the program of the servers")
	flag.StringVar(&d.postgres, "postgres", "", "the URL of a PostgreSQL on this machine, in place of a new one")
	flag.IntVar(&d.jobs, "jobs", 10_000, "how many jobs there are, more than the quota")
	flag.IntVar(&d.quota, "quota", 2000, "how many calls the vendor takes in a window")
	flag.DurationVar(&d.window, "window", time.Minute, "the vendor's window")
	flag.DurationVar(&d.call, "call", 20*time.Millisecond, "how long the vendor takes for a call")
	flag.IntVar(&d.servers, "servers", 3, "how many servers there are, each with a worker")
	flag.DurationVar(&d.patience, "patience", 30*time.Minute, "how long the jobs of one run may take")
	only := flag.String("only", strings.Join(ways, ","), "the runs, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	d.ways = strings.Split(*only, ",")
	results, err := d.run(ctx)
	if err == nil {
		err = d.report(results)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vendor:", err)
		os.Exit(1)
	}
}
