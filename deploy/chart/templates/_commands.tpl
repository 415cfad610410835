{{/* Commands that NOTES.txt shows. Within a pod its variables say where the node is and how to connect, and what the node's settings are. */}}

{{- define "holdfast.exec" -}}
kubectl exec --namespace {{ .Release.Namespace }} {{ include "holdfast.fullname" . }}-0 --
{{- end -}}

{{/* Forms the cluster. It is given to one node, once in the life of the cluster; the node that runs beside it sees it. */}}
{{- define "holdfast.init" -}}
{{ include "holdfast.exec" . }} holdfastd init
{{- end -}}
