package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/demo"
)

// demo returns lucius demo, which starts a server on a data directory of its own, runs a
// pipeline of three services against it, and shows how documents go through.
func (p *program) demo() *cobra.Command {
	cmd := &cobra.Command{
		Use: "demo", GroupID: cli.GroupServer, Short: "Watch documents go through a three-step pipeline", Args: cli.Takes(0, 0),
		Example: "  lucius demo\n  lucius demo --query ledger --keep",
	}
	var o demoOptions
	flags := cmd.Flags()
	flags.StringVar(&o.dir, "data-dir", "./lucius-demo", "folder for the demo's store, protocol, documents and outputs")
	flags.StringVar(&o.listen, "listen-addr", "127.0.0.1:0", "loopback address to serve on")
	flags.StringVar(&o.documents, "documents-dir", "", "folder of the documents (default: the demo's own)")
	flags.StringVar(&o.query, "query", "", "what to search the index for")
	flags.BoolVar(&o.keep, "keep", false, "keep the server running at the end, until Ctrl-C")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.runDemo(cmd.Context(), o) }
	return cmd
}

type demoOptions struct {
	dir, listen, documents, query string
	keep                          bool
}

func (p *program) runDemo(ctx context.Context, o demoOptions) error {
	if err := demo.Unpack(o.dir); err != nil {
		return err
	}
	documents := cmp.Or(o.documents, filepath.Join(o.dir, "documents"))
	// The environment of a real server has no influence.
	loaded, err := config.LoadArgs([]string{
		"--data-dir", filepath.Join(o.dir, "store"), "--listen-addr", o.listen,
		"--protocols-dir", filepath.Join(o.dir, "protocols"), "--log-level", "warn", "--log-format", "text",
	}, nil)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	played := make(chan error, 1)
	err = p.runServer(ctx, &loaded.Config, func(baseURL string) error {
		fmt.Fprintf(p.Stdout, "lucius serves %s with its store in %s\n\n", baseURL, loaded.DataDir)
		go func() {
			played <- demo.Run(ctx, demo.Options{
				BaseURL: baseURL, DocumentsDir: documents, WorkDir: filepath.Join(o.dir, "work"), Out: p.Stdout,
				Terminal: p.Terminal, Query: o.query,
			})
			if o.keep && ctx.Err() == nil {
				fmt.Fprintf(p.Stdout, "\nthe server keeps running at %s; Ctrl-C stops it\n", baseURL)
				return
			}
			stop()
		}()
		return nil
	})
	if err != nil {
		return err
	}
	return <-played
}
