package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/term"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/demo"
)

// demo starts a server on a data directory of its own, runs a pipeline of three
// services against it, and shows how documents go through.
func (p *program) demo(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(p.stderr)
	dir := flags.String("data-dir", "./lucius-demo", "folder of the demo's store and outputs")
	listen := flags.String("listen-addr", "127.0.0.1:0", "loopback address to serve on")
	protocols := flags.String("protocols-dir", "./protocols", "folder of the protocol files")
	documents := flags.String("documents-dir", "./testdata/documents", "folder of the documents")
	query := flags.String("query", "", "what to search the index for")
	keep := flags.Bool("keep", false, "leave the server up at the end, until Ctrl-C")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// The environment of a real server has no influence.
	loaded, _, err := config.Load([]string{
		"--data-dir", filepath.Join(*dir, "store"), "--listen-addr", *listen, "--protocols-dir", *protocols,
		"--log-level", "warn", "--log-format", "text",
	}, nil, p.stderr)
	if err != nil {
		return err
	}
	file, _ := p.stdout.(*os.File)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	played := make(chan error, 1)
	err = p.runServer(ctx, &loaded.Config, func(baseURL string) error {
		fmt.Fprintf(p.stdout, "lucius serves %s, its store is in %s\n\n", baseURL, loaded.DataDir)
		go func() {
			played <- demo.Run(ctx, demo.Options{
				BaseURL: baseURL, DocumentsDir: *documents, WorkDir: filepath.Join(*dir, "work"), Out: p.stdout,
				Terminal: file != nil && term.IsTerminal(int(file.Fd())), Query: *query,
			})
			if *keep && ctx.Err() == nil {
				fmt.Fprintf(p.stdout, "\nthe server stays up at %s; Ctrl-C ends it\n", baseURL)
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
