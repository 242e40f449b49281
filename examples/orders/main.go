// Command orders shows the transactional outbox: an application that stores an order and
// submits its command in one transaction of PostgreSQL.
//
//	orders [-postgres URL] [-kills N]   everything: a PostgreSQL, a server of Lucius, and the
//	                                    application, of which the last two are killed at random
//	orders sell URL                     the application, which takes orders until it is killed
//	orders report URL                   compares its orders with the jobs; 1 if they differ
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	d := demo{protocols: "protocols", out: os.Stdout}
	flag.StringVar(&d.lucius, "lucius", "bin/lucius", "the program of the server")
	flag.StringVar(&d.postgres, "postgres", "", "the URL of a PostgreSQL on this machine, in place of a new one")
	flag.IntVar(&d.kills, "kills", 10, "how often the application or the server is killed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, &d, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

// run does what the arguments say.
func run(ctx context.Context, d *demo, args []string) (err error) {
	switch {
	case len(args) == 0:
		if d.self, err = os.Executable(); err != nil {
			return err
		}
		return d.run(ctx)
	case len(args) == 2 && args[0] == "sell":
		return sell(ctx, args[1])
	case len(args) == 2 && args[0] == "report":
		return report(ctx, args[1], d.out)
	}
	return errors.New("usage: orders [-postgres URL] [-kills N] | orders sell URL | orders report URL")
}
