package main

import (
	"sort"

	_ "github.com/cosi-project/runtime/api/v1alpha1"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/siderolabs/talos/pkg/machinery/api/common"
	_ "github.com/siderolabs/talos/pkg/machinery/api/machine"
	_ "github.com/siderolabs/talos/pkg/machinery/api/resource/config"
	_ "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	_ "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/cluster"
	_ "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/etcd"
	_ "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/hardware"
	_ "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/k8s"
	_ "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/network"
	_ "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/runtime"
	_ "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/v1alpha1"
	_ "github.com/siderolabs/talos/pkg/machinery/api/storage"
)

type field struct {
	Number int32  `json:"number"`
	Name   string `json:"name"`
	// As protobuf names it: string, uint64, message, enum, ...
	Kind     string `json:"kind"`
	Repeated bool   `json:"repeated"`
	// Of an enum or a message.
	Type string `json:"type,omitempty"`
}

type method struct {
	Name            string `json:"name"`
	Input           string `json:"input"`
	Output          string `json:"output"`
	ClientStreaming bool   `json:"clientStreaming"`
	ServerStreaming bool   `json:"serverStreaming"`
}

type schema struct {
	Messages map[string][]field          `json:"messages"`
	Enums    map[string]map[string]int32 `json:"enums"`
	Services map[string][]method         `json:"services"`
}

// descriptors lists what Talos' client library has registered.
func descriptors() schema {
	all := schema{
		Messages: map[string][]field{},
		Enums:    map[string]map[string]int32{},
		Services: map[string][]method{},
	}

	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		all.messages(file.Messages())
		all.enums(file.Enums())

		services := file.Services()
		for i := range services.Len() {
			service := services.Get(i)
			name := string(service.FullName())

			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				all.Services[name] = append(all.Services[name], method{
					Name:            string(m.Name()),
					Input:           string(m.Input().FullName()),
					Output:          string(m.Output().FullName()),
					ClientStreaming: m.IsStreamingClient(),
					ServerStreaming: m.IsStreamingServer(),
				})
			}
		}

		return true
	})

	return all
}

func (all schema) messages(messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		message := messages.Get(i)
		fields := make([]field, 0, message.Fields().Len())

		for j := range message.Fields().Len() {
			f := message.Fields().Get(j)
			entry := field{
				Number:   int32(f.Number()),
				Name:     string(f.Name()),
				Kind:     f.Kind().String(),
				Repeated: f.Cardinality() == protoreflect.Repeated,
			}

			switch {
			case f.Message() != nil:
				entry.Type = string(f.Message().FullName())
			case f.Enum() != nil:
				entry.Type = string(f.Enum().FullName())
			}

			fields = append(fields, entry)
		}

		sort.Slice(fields, func(a, b int) bool { return fields[a].Number < fields[b].Number })

		all.Messages[string(message.FullName())] = fields
		all.messages(message.Messages())
		all.enums(message.Enums())
	}
}

func (all schema) enums(enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		enum := enums.Get(i)
		values := map[string]int32{}

		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			values[string(value.Name())] = int32(value.Number())
		}

		all.Enums[string(enum.FullName())] = values
	}
}
