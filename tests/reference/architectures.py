"""Exports small models of torchvision, timm and transformers, and trains them in PyTorch.

    architectures.py FOLDER NAME...    writes FOLDER/NAME.tkm and, for the C++ side, FOLDER/NAME.safetensors
    architectures.py names short|full  prints the names of the models, those of `./dev test` or all, some per line;
                                       TRAINKIT_ARCHITECTURES="NAME NAME" chooses others
    architectures.py table             prints the table of docs/how-to/pytorch-models.md

The second file has the inputs ("input:<name>"), the losses of 3 steps ("losses"), the weights after them
("weight:<name>") and the optimizer ("sgd" or "adamw", a key of its own). The loss is the mean square of each output,
summed; the seed before the first step is 5. For each model it prints "NAME exported", "NAME skipped: REASON" (its
package is missing) or "NAME refused: REASON".
"""
import contextlib
import importlib.util
import logging
import os
import pathlib
import sys
import time
import traceback
import warnings

import torch
from torch import nn
from torch.utils import _pytree as pytree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "packaging/wheel"))
import trainkit  # noqa: E402

STEPS, ROWS = 3, 3


def images(size=64, rows=ROWS):
    return (torch.randn(rows, 3, size, size),)


def tokens(length=12):
    return {"input_ids": torch.randint(3, 90, (ROWS, length))}


# ---- torchvision


def torchvision(name, size=64, **options):
    def make():
        from torchvision import models
        return models.get_model(name, weights=None, **{"num_classes": 10} | options), images(size)
    return make


def small_classifier(name):
    """The networks whose fully connected layers have 100 million weights, with small ones."""
    def make():
        model, inputs = torchvision(name)()
        layers = [layer for layer in model.classifier if isinstance(layer, nn.Linear)]
        for layer, (i, o) in zip(layers, [(layers[0].in_features, 32), (32, 32), (32, 10)]):
            layer.__init__(i, o)
        return model, inputs
    return make


def segmentation(name):
    return torchvision(name, weights_backbone=None, num_classes=5)


def convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt
    return ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 2)], stochastic_depth_prob=0.2, num_classes=10), images()


def vision_transformer():
    from torchvision.models import VisionTransformer
    return VisionTransformer(32, 8, 2, 4, 48, 96, dropout=0.1, num_classes=10), images(32)


def swin(second):
    def make():
        from torchvision.models import swin_transformer as s
        options = {"block": s.SwinTransformerBlockV2, "downsample_layer": s.PatchMergingV2} if second else {}
        return s.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.1, num_classes=10, **options), images()
    return make


def maxvit():
    from torchvision.models.maxvit import MaxVit
    return MaxVit((64, 64), 8, 4, [16, 32], [1, 1], 8, 0.2, num_classes=10), images()


def video(conv):
    def make():
        from torchvision.models.video import resnet as r
        stem = r.R2Plus1dStem if conv == "Conv2Plus1D" else r.BasicStem
        return r.VideoResNet(r.BasicBlock, [getattr(r, conv)] * 4, [1, 1, 1, 1], stem, num_classes=10), (torch.randn(ROWS, 3, 4, 32, 32),)
    return make


def swin_3d():
    from torchvision.models.video.swin_transformer import SwinTransformer3d
    return SwinTransformer3d([2, 4, 4], 24, [2, 2], [2, 4], [2, 4, 4], num_classes=10), (torch.randn(ROWS, 3, 4, 32, 32),)


def detection_backbone(name):
    def make():
        from torchvision.models.detection import backbone_utils as b
        if name.startswith("mobilenet"):
            return b.mobilenet_backbone(backbone_name=name, weights=None, fpn=True, trainable_layers=6), images()
        return b.resnet_fpn_backbone(backbone_name=name, weights=None, trainable_layers=5), images()
    return make


class Detector(nn.Module):
    """A detector without the matching of boxes: the backbone with the head."""

    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x):
        return self.head(list(self.backbone(x).values()))


def detector(kind):
    def make():
        from torchvision.models.detection import backbone_utils, fcos, retinanet, rpn
        backbone = backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
        head = {"retinanet": lambda: retinanet.RetinaNetHead(256, 3, 4), "fcos": lambda: fcos.FCOSHead(256, 1, 4),
                "rpn": lambda: rpn.RPNHead(256, 3)}[kind]()
        return Detector(backbone, head), images()
    return make


def raft():
    from torchvision.models.optical_flow import raft_small
    return raft_small(), (torch.randn(2, 3, 128, 128), torch.randn(2, 3, 128, 128), 2)


# ---- timm


def timm(name, size=64, **options):
    def make():
        import timm as package
        return package.create_model(name, num_classes=10, **options), images(size)
    return make


# ---- transformers

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
SMALL_VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
                "image_size": 32, "patch_size": 8}


def transformer(model, config, inputs=tokens, **options):
    """A model class and its configuration class of transformers."""
    def make():
        import transformers
        return getattr(transformers, model)(getattr(transformers, config)(**options)), inputs()
    return make


def text(model, config, **options):
    return transformer(model, config, **SMALL | options)


def encoder_decoder():
    return tokens() | {"decoder_input_ids": torch.randint(3, 90, (ROWS, 7))}


def pixels(size=32):
    return {"pixel_values": images(size)[0]}


def labelled():
    return tokens() | {"attention_mask": torch.ones(ROWS, 12, dtype=torch.long), "labels": torch.randint(0, 2, (ROWS,))}


def clip():
    import transformers as t
    config = t.CLIPConfig(text_config=SMALL | {"projection_dim": 16}, vision_config=SMALL_VISION | {"projection_dim": 16},
                          projection_dim=16)
    return t.CLIPModel(config), tokens() | pixels()


BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 100}

# ---- The table: package, family, name, optimizer, and what makes the model and its inputs. "*": of `./dev test`.

ARCHITECTURES = [
    ("torchvision", "classification", {
        "alexnet": small_classifier("alexnet"),
        "vgg11_bn": small_classifier("vgg11_bn"),
        "resnet18*": torchvision("resnet18"),
        "resnext50_32x4d": torchvision("resnext50_32x4d"),
        "densenet121": torchvision("densenet121"),
        "googlenet": torchvision("googlenet", init_weights=False),
        "inception_v3": torchvision("inception_v3", 96, init_weights=False, aux_logits=False),
        "mobilenet_v2": torchvision("mobilenet_v2"),
        "mobilenet_v3_small*": torchvision("mobilenet_v3_small"),
        "mnasnet0_5": torchvision("mnasnet0_5"),
        "shufflenet_v2_x0_5*": torchvision("shufflenet_v2_x0_5"),
        "squeezenet1_1*": torchvision("squeezenet1_1"),
        "efficientnet_b0": torchvision("efficientnet_b0"),
        "regnet_y_400mf": torchvision("regnet_y_400mf"),
        "convnext*": convnext,
        "vision_transformer*": vision_transformer,
        "swin_transformer*": swin(False),
        "swin_transformer_v2": swin(True),
        "maxvit": maxvit,
    }),
    ("torchvision", "segmentation", {
        "fcn_resnet50": segmentation("fcn_resnet50"),
        "deeplabv3_mobilenet_v3_large": segmentation("deeplabv3_mobilenet_v3_large"),
        "lraspp_mobilenet_v3_large": segmentation("lraspp_mobilenet_v3_large"),
    }),
    ("torchvision", "video and optical flow", {
        "r3d": video("Conv3DSimple"),
        "mc3": video("Conv3DNoTemporal"),
        "r2plus1d": video("Conv2Plus1D"),
        "swin3d": swin_3d,
        "raft_small": raft,
    }),
    ("torchvision", "detection, without the matching", {
        "fpn_resnet18": detection_backbone("resnet18"),
        "fpn_mobilenet_v3_large": detection_backbone("mobilenet_v3_large"),
        "retinanet_resnet18": detector("retinanet"),
        "fcos_resnet18": detector("fcos"),
        "rpn_resnet18": detector("rpn"),
    }),
    ("timm", "", {
        "resnetv2_50": timm("resnetv2_50"),
        "efficientnetv2_rw_t": timm("efficientnetv2_rw_t", drop_path_rate=0.1),
        "convnextv2_atto": timm("convnextv2_atto", drop_path_rate=0.1),
        "mobilevitv2_050": timm("mobilevitv2_050"),
        "deit_tiny_patch16_224": timm("deit_tiny_patch16_224", img_size=64, drop_rate=0.1, depth=4),
        "mixer_s16_224": timm("mixer_s16_224", img_size=64),
        "coat_lite_tiny": timm("coat_lite_tiny", 224),
        "eva02_tiny_patch14_224": timm("eva02_tiny_patch14_224", 56, img_size=56, depth=4),
        "levit_128s": timm("levit_128s", 224),
        "ghostnet_100": timm("ghostnet_100"),
        "hrnet_w18_small": timm("hrnet_w18_small"),
        "poolformer_s12": timm("poolformer_s12"),
        "edgenext_xx_small": timm("edgenext_xx_small"),
        "mobilenetv4_conv_small": timm("mobilenetv4_conv_small"),
        "xcit_nano_12_p16_224": timm("xcit_nano_12_p16_224", img_size=64),
    }),
    ("transformers", "language models", {
        "gpt2*": transformer("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=32,
                             bos_token_id=0, eos_token_id=0),
        "llama*": text("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2),
        "mistral": text("MistralForCausalLM", "MistralConfig", num_key_value_heads=2),
        "qwen2": text("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2),
        "qwen3": text("Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=8),
        "gemma2": text("Gemma2ForCausalLM", "Gemma2Config", num_key_value_heads=2, head_dim=8),
        "phi": text("PhiForCausalLM", "PhiConfig"),
        "opt": text("OPTForCausalLM", "OPTConfig", ffn_dim=64, word_embed_proj_dim=32),
        "gpt_neox": text("GPTNeoXForCausalLM", "GPTNeoXConfig"),
        "mixtral": text("MixtralForCausalLM", "MixtralConfig", num_key_value_heads=2, num_local_experts=4,
                        experts_implementation="batched_mm"),
        "mamba": transformer("MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, vocab_size=100, state_size=8),
        "t5*": transformer("T5ForConditionalGeneration", "T5Config", encoder_decoder, d_model=32, d_kv=8, d_ff=64, num_layers=2,
                           num_heads=4, vocab_size=100, decoder_start_token_id=0),
        "bart": transformer("BartForConditionalGeneration", "BartConfig", encoder_decoder, **BART),
    }),
    ("transformers", "encoders of text", {
        "bert*": transformer("BertForSequenceClassification", "BertConfig", labelled, **SMALL),
        "roberta": text("RobertaForSequenceClassification", "RobertaConfig"),
        "distilbert*": transformer("DistilBertForSequenceClassification", "DistilBertConfig", dim=32, n_layers=2, n_heads=4,
                                   hidden_dim=64, vocab_size=100),
        "electra": text("ElectraForTokenClassification", "ElectraConfig", embedding_size=32),
        "albert": text("AlbertForSequenceClassification", "AlbertConfig", embedding_size=32),
        "deberta_v2": text("DebertaV2ForSequenceClassification", "DebertaV2Config", relative_attention=True,
                           pos_att_type=["p2c", "c2p"]),
        "mpnet": text("MPNetForSequenceClassification", "MPNetConfig"),
        "modernbert": text("ModernBertForSequenceClassification", "ModernBertConfig", pad_token_id=0),
    }),
    ("transformers", "pictures and sound", {
        "vit": transformer("ViTForImageClassification", "ViTConfig", pixels, **SMALL_VISION),
        "dinov2": transformer("Dinov2ForImageClassification", "Dinov2Config", pixels, **SMALL_VISION),
        "segformer": transformer("SegformerForSemanticSegmentation", "SegformerConfig", lambda: pixels(64),
                                 hidden_sizes=[16, 32, 40, 64], decoder_hidden_size=32, depths=[1, 1, 1, 1], num_labels=5),
        "clip": clip,
        "whisper": transformer("WhisperForConditionalGeneration", "WhisperConfig",
                               lambda: {"input_features": torch.randn(ROWS, 80, 100),
                                        "decoder_input_ids": torch.randint(3, 90, (ROWS, 7))},
                               max_source_positions=50, pad_token_id=0, decoder_start_token_id=1, bos_token_id=1,
                               eos_token_id=2, begin_suppress_tokens=None, **BART),
        "wav2vec2": transformer("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config",
                                lambda: {"input_values": torch.randn(ROWS, 1600)}, **SMALL, conv_dim=(32, 32), conv_stride=(5, 2),
                                conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=16,
                                num_conv_pos_embedding_groups=4, mask_time_prob=0.0, layerdrop=0.0),
    }),
]
# Those that are known to have no graph, and why.
REFUSED = {}


def entries():
    """(package, name, whether it is of `./dev test`, what makes it) of each model."""
    for package, _, models in ARCHITECTURES:
        for name, make in models.items():
            yield package, name.rstrip("*"), name.endswith("*"), make


# ---- Training in PyTorch


def loss_of(outputs):
    return sum(one.square().mean() for one in pytree.tree_leaves(outputs) if isinstance(one, torch.Tensor) and one.is_floating_point())


def write(package, name, make, folder):
    torch.manual_seed(3)
    model, inputs = make()
    with contextlib.redirect_stdout(sys.stderr):
        description = trainkit.export_model(model, inputs, f"{folder}/{name}.tkm")
    call = (lambda: model(**inputs)) if isinstance(inputs, dict) else (lambda: model(*inputs))
    adamw = package == "transformers"
    optimizer = (torch.optim.AdamW(model.parameters(), 1e-3, fused=True) if adamw
                 else torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, fused=True))
    model.train()
    torch.manual_seed(5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(call())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    found = {"losses": torch.stack(losses), "adamw" if adamw else "sgd": torch.zeros(1)}
    values = inputs.values() if isinstance(inputs, dict) else inputs
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    for entry, tensor in zip(description["inputs"], tensors, strict=True):
        found["input:" + entry["name"]] = tensor
    for key, tensor in model.state_dict().items():
        found["weight:" + key] = tensor
    from safetensors.torch import save_file
    save_file({key: tensor.detach().clone().contiguous() for key, tensor in found.items()}, f"{folder}/{name}.safetensors")


def table():
    rows = ["| package | models |", "|---|---|"]
    for package, family, models in ARCHITECTURES:
        names = ", ".join(name.rstrip("*") for name in models if name.rstrip("*") not in REFUSED)
        rows.append(f"| {package}{', ' if family else ''}{family} | {names} |")
    return "\n".join(rows + [f"| {name}: none | {reason} |" for name, reason in REFUSED.items()])


def main():
    if sys.argv[1] == "table":
        return print(table())
    if sys.argv[1] == "names":
        wanted = os.environ.get("TRAINKIT_ARCHITECTURES", "").split()
        names = wanted or [name for _, name, is_short, _ in entries() if is_short or sys.argv[2] == "full"]
        return print("\n".join(" ".join(names[at:at + 6]) for at in range(0, len(names), 6)))
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    for package, name, _, make in entries():
        if name not in sys.argv[2:]:
            continue
        if importlib.util.find_spec(package) is None:
            print(f"{name} skipped: no Python package {package}")
            continue
        begin = time.process_time()
        try:
            write(package, name, make, sys.argv[1])
            print(f"{name} exported in {time.process_time() - begin:.1f} s")
        except trainkit.ExportError as error:
            print(f"{name} refused: {' '.join(str(error).split())[:400]}")
        except Exception as error:
            print(f"{name} failed: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
            if os.environ.get("TRAINKIT_TRACE"):
                traceback.print_exc()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
