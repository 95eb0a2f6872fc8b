// Command talos-conformance holds the simulated Talos machines, and the messages that Ichor wrote
// down by hand, against Talos' own client library.
//
//	talos-conformance descriptors
//	    prints the fields of Talos' messages and the methods of its services
//	talos-conformance drive -talosconfig FILE -node ADDRESS
//	    reads everything that Ichor reads from a control plane, then has it hand over its etcd
//	    leadership, leave etcd and reset itself, and prints what came back
//
// Both print one JSON document.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: talos-conformance descriptors | drive -talosconfig FILE -node ADDRESS")
	}

	switch args[0] {
	case "descriptors":
		return print(descriptors())
	case "drive":
		flags := flag.NewFlagSet("drive", flag.ContinueOnError)
		talosconfig := flags.String("talosconfig", "", "the talosconfig to use")
		node := flags.String("node", "", "the control plane to drive")

		if err := flags.Parse(args[1:]); err != nil {
			return err
		}

		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()

		report, err := drive(ctx, *talosconfig, *node)
		if err != nil {
			return err
		}

		return print(report)
	default:
		return fmt.Errorf("no such command: %s", args[0])
	}
}

func print(document any) error {
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")

	return encoder.Encode(document)
}
